"""A time in a table or in the properties of a message. Not in ``fields``: mypyc cannot compile a subclass of int (ADR 0095)."""


class Timestamp(int):
    """Seconds since 1970. Tables know it from a number."""
