"""The process of a cluster node: its supervisor, its answers to clients while it does not lead, and its broker while it leads.
Contract: replication.md; ADR 0107.

Loaded only with ``--cluster``.
"""
