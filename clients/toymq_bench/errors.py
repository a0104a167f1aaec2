"""Errors of the benchmark itself, each printed as one line."""

from toymq_py.errors import LocalError


class BenchError(LocalError):
    """The measurement could not be made."""


class WrongReply(BenchError):
    """A broker answered with an error, left a gap, or sent an unexpected frame: the figures would be worthless."""
