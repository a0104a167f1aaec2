"""Integers with an AMQP type of their own in tables and properties. Not in ``fields``: mypyc cannot compile a subclass of int
(ADR 0095)."""


class Timestamp(int):
    """Seconds since 1970, encoded in a table as a timestamp and not as a number."""


class Long(int):
    """An integer that is encoded with 64 bits in a table, however small it is, as clients in typed languages expect."""
