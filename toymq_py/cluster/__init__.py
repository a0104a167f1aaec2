"""The process of a node of a cluster: supervisor, standby answers, the broker in office. Contract: replication.md; ADR 0107.

Loaded only with ``--cluster``."""
