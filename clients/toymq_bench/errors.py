"""What can go wrong with a benchmark itself. Each is told in one line."""

from toymq_py.errors import LocalError


class BenchError(LocalError):
    """The measurement could not be made."""


class WrongReply(BenchError):
    """A broker answered with an error, left a gap, or said what was not expected: the figures would be worthless."""
