"""Typed values: columns from the bytes of a record's value, and back. Knows nothing of brokers, except for dead letters."""
