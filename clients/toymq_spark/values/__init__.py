"""Typed values: converts the bytes of a record's value to columns, and back. Does not know brokers, except to publish dead
letters."""
