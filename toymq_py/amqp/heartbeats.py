"""Heartbeats of an AMQP connection: sends them, and finds a silent peer.

Contract: the specification, 4.2.7. Belongs to the event loop.
"""

from collections.abc import Callable

from toymq_py.amqp.deadline import Deadline
from toymq_py.amqp.frames import HEARTBEAT_FRAME
from toymq_py.amqp.intake import Intake
from toymq_py.amqp.outbox import Outbox
from toymq_py.clock import Clock


class Heartbeats:
    """The heartbeats of one connection, until its deadline gets another use."""

    def __init__(self, clock: Clock, deadline: Deadline, intake: Intake, outbox: Outbox, end: Callable[[str], None]) -> None:
        """``end`` closes the connection for the given reason."""
        self._clock = clock
        self._deadline = deadline
        self._intake = intake
        self._outbox = outbox
        self._end = end
        self._interval_s = 0

    def begin(self, interval_s: int) -> None:
        """Send a heartbeat where nothing else was written for half the interval, and end a connection whose peer was silent for
        two. 0: the peers want none."""
        self._interval_s = interval_s
        if interval_s:
            self._beat()

    def close(self) -> None:
        """Drop ``end``, which references the session. The owner cancels the deadline."""
        self._end = _ignore

    def _beat(self) -> None:
        now, half_s = self._clock.monotonic(), self._interval_s / 2
        if self._intake.reading and now - self._intake.last_read > 2 * self._interval_s:
            self._end(f"missed heartbeats, {self._interval_s} s")
            return
        if now - self._outbox.last_write >= half_s and not self._outbox.stalled:
            self._outbox.add(HEARTBEAT_FRAME)
            self._outbox.flush()
        self._deadline.set(half_s, self._beat)


def _ignore(_: str) -> None:
    """Do nothing: the connection is gone."""
