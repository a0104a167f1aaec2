"""Closing an idle connection, on a loop whose time the test sets."""

from collections.abc import Callable

import pytest

from toymq_py.gateway.idle_timer import ANONYMOUS_KEEP_ALIVE_S, KEEP_ALIVE_S, IdleTimer


class Loop:
    """An event loop with a settable time and its timers."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay_s: float, call: Callable[[], None]) -> "Loop":
        self.timers.append((self.now + delay_s, call))
        return self

    def cancel(self) -> None:
        self.timers.clear()

    def fire(self) -> None:
        """Advance to the only timer that is set."""
        ((self.now, call),) = self.timers
        self.timers.clear()
        call()


@pytest.mark.parametrize(("anonymous", "limit_s"), [(False, KEEP_ALIVE_S), (True, ANONYMOUS_KEEP_ALIVE_S)])
def test_one_timer_lasts_for_many_requests(anonymous: bool, limit_s: float) -> None:
    loop = Loop()
    closed: list[float] = []
    idle = IdleTimer(loop, lambda: closed.append(loop.now))  # type: ignore[arg-type]  # as much as is needed
    for loop.now in (0.0, 1.0, 2.0):
        idle.end()
        idle.begin(anonymous=anonymous)
    assert len(loop.timers) == 1
    loop.fire()
    assert (loop.now, closed) == (limit_s, []), "counted from the last answer"
    loop.fire()
    assert closed == [2.0 + limit_s]


def test_a_request_or_the_end_of_the_connection_ends_it() -> None:
    loop = Loop()
    closed: list[float] = []
    idle = IdleTimer(loop, lambda: closed.append(loop.now))  # type: ignore[arg-type]  # as much as is needed
    idle.begin(anonymous=False)
    idle.end()
    loop.fire()
    assert (closed, loop.timers) == ([], [])
    idle.begin(anonymous=False)
    idle.cancel()
    assert loop.timers == []
