"""Retries of failed jobs: how many, and after what delay."""

from dataclasses import dataclass
from random import Random

from toymq import arguments
from toymq.nack_reason import DeadOn
from toymq_py.errors import BadArgument

RETRIES_MAX = 1_000_000
OUT_OF_ATTEMPTS = "max-attempts"
"""The reason of a dead letter whose retries are used up: the broker's own word for its ``max_attempts``."""
JITTER = 0.1
"""The part by which a delay is longer at most: jobs that failed together are not all tried again at once."""


RANGE = 'a duration or a range of them, "1s..1m" say'


def _backoff_s(value: object) -> float:
    """Convert one bound of a backoff to seconds. Raises: TypeError, BadArgument."""
    try:
        return arguments.duration_ms("backoff", value, 1) / 1000
    except BadArgument as error:
        if not isinstance(value, str):
            raise
        raise BadArgument(f"{error}; backoff is {RANGE}") from None


@dataclass(frozen=True, slots=True)
class Retries:
    """How the failed jobs of one worker are retried.

    Attributes:
        count: how often a job is tried again; None leaves it to the topic's ``max_attempts``.
        first_s, last_s: the delay after the first failure and the longest delay, seconds; each delay is twice the one before.
            None leaves it to the topic's backoff.
        dead_on: exceptions after which a retry would fail, too.
    """

    count: int | None = None
    first_s: float | None = None
    last_s: float = 0.0
    dead_on: DeadOn = ()

    @classmethod
    def checked(cls, retries: object, backoff: object, dead_on: DeadOn) -> "Retries":
        """Check the arguments of ``App.worker`` about retries. Raises: TypeError, BadArgument."""
        arguments.exceptions("dead_on", dead_on)
        count = None if retries is None else arguments.whole("retries", retries, 0, RETRIES_MAX)
        if backoff is None:
            return cls(count, dead_on=dead_on)
        first, dots, last = backoff.partition("..") if isinstance(backoff, str) else (backoff, "", "")
        first_s = _backoff_s(first)
        last_s = _backoff_s(last) if dots else first_s
        if last_s < first_s:
            raise BadArgument(f"backoff is {RANGE}, the shorter first, not {backoff!r}")
        return cls(count, first_s, last_s, dead_on)

    def is_last(self, attempt: int) -> bool:
        """Whether a failure of this attempt makes the job a dead letter. ``attempt`` counts from 1."""
        return self.count is not None and attempt > self.count

    def is_used_up(self, attempt: int) -> bool:
        """Whether all attempts had begun before this one: the last of them got no answer, because its worker was killed."""
        return self.count is not None and attempt > self.count + 1

    def delay_s(self, attempt: int, random: Random) -> float | None:
        """The delay after a failure of this attempt, in seconds; None leaves it to the topic's backoff."""
        if self.first_s is None:
            return None
        doublings = min(attempt - 1, 64)
        return min(self.first_s * 2.0**doublings, self.last_s) * (1 + random.uniform(0, JITTER))
