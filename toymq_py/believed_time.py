"""The wall clock by which retention removes old messages: it does not follow a jump forward at once (ADR 0219).

If the wall clock is ahead for a moment, every message seems old. So it is compared with the monotonic clock: a jump forward is
believed once it has lasted for ten minutes; until then time goes on as without the jump. A clock that is set back is believed
at once, as that removes nothing too early.
"""

import logging
from dataclasses import dataclass

from toymq_py.clock import Clock

logger = logging.getLogger("toymq_py.broker")

JUMP_MIN_NS = 10_000_000_000
"""The smallest jump that is doubted: less is a leap second, or a step of NTP, and a message that is removed so much earlier
does no harm."""
BELIEVED_AFTER_S = 600.0
"""The time after which a jump is believed: longer than it takes to notice and correct a wrong time, by hand or by NTP; short
compared with any retention time."""


@dataclass(frozen=True, slots=True)
class Belief:
    """The believed offset of the wall clock from the monotonic clock, in nanoseconds."""

    ahead_ns: int
    unbelieved_ns: int | None = None
    """The lowest time that was seen since the jump; None: there was none."""
    since_s: float = 0.0
    """When the jump was seen, on the monotonic clock."""


def judge(before: Belief, ahead_ns: int, now_s: float) -> Belief:
    """The belief after a look at both clocks. If a clock jumps again and again, only the smallest lead that it had all the time
    is believed, so that retention is not blocked for ever."""
    if ahead_ns <= before.ahead_ns + JUMP_MIN_NS:
        return Belief(ahead_ns)
    if before.unbelieved_ns is None:
        return Belief(before.ahead_ns, ahead_ns, now_s)
    least_ns = min(before.unbelieved_ns, ahead_ns)
    if now_s - before.since_s >= BELIEVED_AFTER_S:
        return Belief(least_ns)
    return Belief(before.ahead_ns, least_ns, before.since_s)


class BelievedTime:
    """The believed wall clock of one broker. It starts with the time of the wall clock, as nothing else is known then. Belongs
    to the event loop, which checks both clocks every few seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._belief = Belief(clock.wall_ns() - _ns(clock.monotonic()))

    def now_ns(self) -> int:
        """Look at both clocks. Returns: nanoseconds since the epoch, the wall clock's time or less."""
        before, now_s = self._belief, self._clock.monotonic()
        self._belief = belief = judge(before, self._clock.wall_ns() - _ns(now_s), now_s)
        if belief.unbelieved_ns is not None and before.unbelieved_ns is None:
            logger.warning(
                "the wall clock jumped ahead by %.0f s: it was set, or the machine slept; "
                "nothing is removed for that age before it has stood for %.0f minutes",
                (belief.unbelieved_ns - belief.ahead_ns) / 1e9, BELIEVED_AFTER_S / 60,
            )  # fmt: skip
        return _ns(now_s) + belief.ahead_ns

    @property
    def settles_in_s(self) -> float | None:
        """How many seconds until the current jump is believed; None without one."""
        if self._belief.unbelieved_ns is None:
            return None
        return max(self._belief.since_s + BELIEVED_AFTER_S - self._clock.monotonic(), 0.0)


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
