"""A data directory in several copies: the stream of changes, and what a leader waits for. Contract: replication.md; ADR 0098.

Loaded only by a broker with ``--cluster``, and of it the agreement by ``toymqctl cluster``."""
