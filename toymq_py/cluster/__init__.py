"""The process of a cluster node: its supervisor, its answers while it does not lead, its broker while it does. Contract:
replication.md; ADR 0107.

Loaded only with ``--cluster``.
"""
