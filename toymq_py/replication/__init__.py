"""Replication of a data directory: the stream of changes, and the acknowledgements that a leader waits for. Contract:
replication.md; ADR 0098.

Loaded only by a broker with ``--cluster``; ``toymqctl cluster`` loads the agreement.
"""
