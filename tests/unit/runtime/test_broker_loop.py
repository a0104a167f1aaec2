"""The broker's share of descriptors, and its periodic check of the directory."""

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from toymq_py.broker import Broker
from toymq_py.runtime import broker_loop
from toymq_py.runtime.broker_loop import DIRECTORY_CHECK_S, DirectoryWatch


@pytest.mark.parametrize(
    ("allowed", "connections", "files"),
    [(1024, 768, 128), (400, 200, 100), (256, 128, 64), (65_536, 10_000, 16_384), (100, 50, 16), (1 << 20, 10_000, 16_384)],
)
def test_connections_and_files_and_a_reserve_are_what_is_allowed(
    monkeypatch: pytest.MonkeyPatch, allowed: int, connections: int, files: int
) -> None:
    monkeypatch.setattr(broker_loop.resource, "getrlimit", lambda _: (allowed, allowed))
    assert broker_loop.open_files_max(connections) == files
    assert connections + files < allowed


class Timers:
    """``call_later`` of a loop, and a broker that checks its directory when it is told to."""

    def __init__(self) -> None:
        self.due: list[Callable[[], None]] = []
        self.checked: list[Callable[[], None]] = []

    def call_later(self, delay_s: float, call: Callable[[], None]) -> "Timers":
        assert delay_s == DIRECTORY_CHECK_S
        self.due.append(call)
        return self

    def cancel(self) -> None:
        self.due.clear()

    def check_directory(self, done: Callable[[], None]) -> None:
        self.checked.append(done)


def test_the_next_check_waits_for_the_last_one() -> None:
    timers = Timers()
    watch = DirectoryWatch(cast(asyncio.AbstractEventLoop, timers), cast(Broker, timers))
    watch.stop()
    watch.start()
    timers.due.pop()()
    assert (len(timers.checked), timers.due) == (1, []), "a disk that hangs collects no checks"
    timers.checked.pop()()
    assert len(timers.due) == 1
    watch.stop()
    assert timers.due == []
