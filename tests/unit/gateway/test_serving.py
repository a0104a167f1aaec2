"""Closing all connections of a server."""

import asyncio
import random

import pytest

from tests.support.http_rig import gateway
from tests.support.sim_disk import SimDisk
from toymq_py.clock import SystemClock
from toymq_py.gateway.app import Application
from toymq_py.gateway.serving import Serving


class Connection:
    """A connection that closes at once, or only when it is aborted."""

    def __init__(self, serving: Serving, *, stays: bool = False) -> None:
        self.transport = self  # type: ignore[assignment]
        self.calls: list[str] = []
        self._serving = serving
        self._stays = stays
        self.seat = None
        serving.join(self)  # type: ignore[arg-type]  # as much as is needed

    def shutdown(self) -> None:
        self.calls.append("shutdown")
        if not self._stays:
            self._serving.leave(self)  # type: ignore[arg-type]

    def cancel(self) -> None:
        self.calls.append("cancel")

    def abort(self) -> None:
        self.calls.append("abort")
        self._serving.leave(self)  # type: ignore[arg-type]


@pytest.fixture
async def serving() -> Serving:
    async with gateway("/data/d", fs=SimDisk(random.Random(1))) as rig:
        assert rig.gateway is not None
        application = Application(rig.gateway, hosts=None)
        return Serving(application, asyncio.get_running_loop(), SystemClock(), rig.broker.quotas, 1000)


async def test_all_are_asked_to_end_and_waited_for(serving: Serving) -> None:
    assert await serving.shut_down(10) == 0
    connections = [Connection(serving) for _ in range(3)]
    task = asyncio.ensure_future(asyncio.sleep(0))
    serving.own(task)
    assert await serving.shut_down(10) == 0
    assert [connection.calls for connection in connections] == [["shutdown"]] * 3
    assert task.done()


async def test_what_takes_too_long_is_cut(serving: Serving) -> None:
    quick, slow = Connection(serving), Connection(serving, stays=True)
    task: asyncio.Task[None] = asyncio.ensure_future(asyncio.sleep(3600))
    serving.own(task)
    assert await serving.shut_down(0.01) == 1
    assert (quick.calls, slow.calls) == (["shutdown"], ["shutdown", "cancel", "abort"])
    assert task.cancelled()


async def test_the_date_is_that_of_the_last_tick(serving: Serving) -> None:
    assert serving.common_headers.startswith(b"date: %b\r\n" % serving.date.encode())
    serving.common_headers = b""
    serving.tick()
    assert b"x-content-type-options: nosniff\r\n" in serving.common_headers
