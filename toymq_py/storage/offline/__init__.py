"""Tools for a data directory without its broker: verify, repair, dump, backup and restore."""
