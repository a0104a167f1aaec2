"""The broker's share of descriptors, and its periodic check of the directory."""

import asyncio
import gc
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from toymq_py.broker import Broker
from toymq_py.clock import SystemClock
from toymq_py.config.options import BrokerOptions
from toymq_py.net import dead_peers
from toymq_py.net.open_connections import OpenConnection
from toymq_py.runtime import broker_loop
from toymq_py.runtime.broker_loop import DIRECTORY_CHECK_S, DirectoryWatch, LoopScheduler, opened_broker


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


@pytest.mark.parametrize("is_enabled", [True, False])
def test_recovery_is_not_interrupted_by_collections_and_what_was_set_stays(is_enabled: bool) -> None:
    was_enabled = gc.isenabled()
    try:
        (gc.enable if is_enabled else gc.disable)()
        with broker_loop._without_collections():
            assert not gc.isenabled()
        assert gc.isenabled() is is_enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()


class Timers:
    """The ``call_later`` of a loop, and a broker that checks its directory when it is told to."""

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


class Ticket:
    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def when_settled(self, call: Callable[[], None]) -> None:
        self.calls.append(call)


async def test_what_follows_a_job_waits_for_its_ticket_on_the_loop_and_on_a_thread() -> None:
    done: list[str] = []
    tickets: list[Ticket | None] = [None, Ticket(), Ticket()]
    free, here, there = tickets

    def run_job(job: Callable[[], None]) -> Ticket | None:
        job()
        return tickets.pop(0)

    scheduler = LoopScheduler(asyncio.get_running_loop(), run_job)
    try:
        scheduler.run_here(lambda: done.append("job"), lambda: done.append("free"))
        assert done == ["job", "free"], "without a ticket nothing is waited for"
        scheduler.run_here(lambda: done.append("job"), lambda: done.append("here"))
        assert done == ["job", "free", "job"]
        scheduler.offload(lambda: done.append("thread"), lambda: done.append("there"))
        assert isinstance(there, Ticket)
        assert isinstance(here, Ticket)
        async with asyncio.timeout(10):
            while not there.calls:  # noqa: ASYNC110 (a turn of the loop each)
                await asyncio.sleep(0)
        for ticket in (there, here):
            ticket.calls.pop()()
        assert done == ["job", "free", "job", "thread", "there", "here"]
        assert free is None
    finally:
        scheduler.close(drop_waiting=False)


async def test_an_open_broker_looks_for_clients_that_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_peers, "ROUND_S", 0.0)
    looked = asyncio.Event()

    def connections() -> list[OpenConnection]:
        looked.set()
        return []

    with opened_broker(BrokerOptions(data_dir=str(tmp_path)), SystemClock(), asyncio.get_running_loop()) as broker:
        broker.quotas.open_connections.sources.append(connections)
        await asyncio.wait_for(looked.wait(), 10)
