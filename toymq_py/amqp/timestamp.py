"""Numbers of their own kinds in tables and properties. Not in ``fields``: mypyc cannot compile a subclass of int (ADR 0095)."""


class Timestamp(int):
    """Seconds since 1970. Tables know it from a number."""


class Long(int):
    """A number that has 64 bits in a table, however small it is: clients in typed languages count on it."""
