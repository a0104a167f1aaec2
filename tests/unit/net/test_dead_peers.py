"""Connections whose client is gone are closed; those whose client only does not read are kept."""

import asyncio
import contextlib
import socket
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.support.fake_clock import FakeClock
from tests.support.machines import Machines
from tests.support.requirements import require
from toymq_py.clock import SystemClock
from toymq_py.net import dead_peers
from toymq_py.net.dead_peers import PATIENCE_S, ROUND_S, SLICE, SLICE_S, DeadPeers, TcpState, tcp_state
from toymq_py.net.open_connections import OpenConnection, OpenConnections

LATE_MS = round(PATIENCE_S * 1000)
linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel does not say")


# -- the rule


def test_an_idle_connection_is_not_dead() -> None:
    assert not TcpState(probes=0, unacked=0, sent_ms=600_000, heard_ms=600_000).is_dead(600)


def test_what_was_written_to_an_idle_connection_has_its_time() -> None:
    written = TcpState(probes=0, unacked=1, sent_ms=3, heard_ms=600_000)
    assert not written.is_dead(0)
    assert not written.is_dead(PATIENCE_S - 1)
    assert written.is_dead(PATIENCE_S)


def test_a_busy_connection_is_not_dead_though_each_look_sees_something_under_way() -> None:
    assert not TcpState(probes=0, unacked=9, sent_ms=0, heard_ms=1).is_dead(600)
    assert not TcpState(probes=0, unacked=9, sent_ms=0, heard_ms=LATE_MS - 1).is_dead(600)


def test_a_full_receiver_that_answers_each_probe_is_not_dead_however_rare_they_are() -> None:
    assert not TcpState(probes=0, unacked=0, sent_ms=600_000, heard_ms=119_000).is_dead(600)


def test_a_receiver_that_answers_and_drops_what_it_has_no_room_for_is_not_dead() -> None:
    assert not TcpState(probes=0, unacked=4, sent_ms=119_000, heard_ms=119_000).is_dead(600)


def test_a_full_receiver_that_answers_no_probe_is_dead() -> None:
    assert TcpState(probes=1, unacked=0, sent_ms=600_000, heard_ms=LATE_MS).is_dead(PATIENCE_S)


# -- looking, with states that are made up


class Transport:
    def __init__(self, *, closing: bool = False) -> None:
        self.closing = closing
        self.unsent_bytes = 0
        self.aborted = False

    def get_extra_info(self, name: str) -> None:
        return None

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return self.unsent_bytes

    def abort(self) -> None:
        self.aborted = True


class Loop:
    """An event loop that runs what is due, and counts it."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.due: list[tuple[float, Callable[..., None], tuple[Any, ...]]] = []
        self.waits: list[float] = []

    def call_later(self, delay_s: float, call: Callable[..., None], *arguments: Any) -> "Loop":
        self.due.append((self.clock.monotonic() + delay_s, call, arguments))
        self.waits.append(delay_s)
        return self

    def cancel(self) -> None:
        self.due.clear()

    def advance(self, seconds: float) -> None:
        end = self.clock.monotonic() + seconds
        while self.due and self.due[0][0] <= end:
            at, call, arguments = self.due.pop()
            self.clock.advance(max(at - self.clock.monotonic(), 0))
            call(*arguments)
        self.clock.advance(end - self.clock.monotonic())


class World:
    """Transports, and the kernel's information about them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int = 1) -> None:
        self.transports = [Transport() for _ in range(count)]
        self.states: dict[Transport, TcpState] = {}
        clock = FakeClock()
        self.loop = Loop(clock)
        connections = OpenConnections()
        connections.sources.append(
            lambda: [OpenConnection("toymq", at, 0, each, each.abort) for at, each in enumerate(self.transports)]  # type: ignore[arg-type]
        )
        monkeypatch.setattr(dead_peers, "tcp_state", self.states.get)
        self.peers = DeadPeers(connections, self.loop, clock)  # type: ignore[arg-type]
        self.peers.start()


def test_a_client_that_is_gone_is_ended_when_it_was_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    (transport,) = world.transports
    world.states[transport] = TcpState(0, 1, 0, 600_000)
    world.loop.advance(PATIENCE_S)
    assert not transport.aborted, "it is known for less than that"
    world.loop.advance(2 * ROUND_S)
    assert transport.aborted


def test_one_that_answered_is_waited_for_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    (transport,) = world.transports
    world.states[transport] = TcpState(0, 1, 0, 600_000)
    world.loop.advance(PATIENCE_S)
    world.states[transport] = TcpState(0, 0, 0, 0)
    world.loop.advance(ROUND_S)
    world.states[transport] = TcpState(0, 1, 0, 600_000)
    world.loop.advance(PATIENCE_S)
    assert not transport.aborted


def test_where_the_kernel_says_nothing_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)
    world.loop.advance(10 * PATIENCE_S)
    assert not world.transports[0].aborted


def test_one_that_the_broker_closed_may_take_the_rest_as_long_as_it_takes_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client of a closed connection may read the rest slowly. One that reads nothing more would hold its place for ever,
    and is cut off."""
    world = World(monkeypatch)
    (transport,) = world.transports
    transport.closing, transport.unsent_bytes = True, 1_000_000
    for _ in range(10):
        world.loop.advance(PATIENCE_S - ROUND_S)
        transport.unsent_bytes -= 1
    assert not transport.aborted
    world.loop.advance(PATIENCE_S + 2 * ROUND_S)
    assert transport.aborted


def test_many_connections_are_looked_at_a_slice_at_a_time_and_the_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, 2 * SLICE + 1)
    world.states.update({each: TcpState(0, 1, 0, 600_000) for each in world.transports})
    world.loop.advance(ROUND_S + 2 * SLICE_S)
    assert world.loop.waits == [ROUND_S, SLICE_S, SLICE_S, ROUND_S]
    assert len(world.peers._waiting) == 2 * SLICE + 1
    world.transports.clear()
    world.loop.advance(ROUND_S)
    assert not world.peers._waiting
    world.peers.stop()
    assert not world.loop.due


# -- what the kernel says


@contextlib.asynccontextmanager
async def full(listener: socket.socket, client: Callable[[], contextlib.AbstractContextManager[Any]]) -> AsyncIterator[Any]:
    """Yield a transport to a client that reads nothing, once the kernel takes no more bytes; and the client."""
    loop = asyncio.get_running_loop()
    listener.setblocking(False)
    with client() as there:
        connection, _ = await loop.sock_accept(listener)
        transport, _ = await loop.connect_accepted_socket(asyncio.Protocol, connection)
        try:
            transport.write(b"x" * 20_000_000)
            yield transport, there
        finally:
            transport.abort()
            await asyncio.sleep(0)


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not true():  # noqa: ASYNC110 (the kernel has no event for it)
            await asyncio.sleep(0.005)


@linux
async def test_a_client_that_does_not_read_is_left_alone_and_its_data_is_there() -> None:
    """The kernel sends TCP probes now and then, and the client's kernel answers them: each check falls before or after one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with full(listener, lambda: socket.create_connection(listener.getsockname())) as (transport, client):
            connections, clock = OpenConnections(), FakeClock()
            connections.sources.append(lambda: [OpenConnection("toymq", 1, 0, transport, transport.abort)])
            peers = DeadPeers(connections, asyncio.get_running_loop(), clock)

            def answered() -> bool:
                state = tcp_state(transport)
                return state is not None and not state.unanswered and state.heard_ms < state.sent_ms

            for _ in range(2):  # probes of a full receiver are answered
                await until(answered)
                clock.advance(PATIENCE_S)
                peers._begin()
                peers.stop()
            assert not transport.is_closing()
            client.setblocking(False)
            received = 0
            while received < 20_000_000:
                received += len(await asyncio.get_running_loop().sock_recv(client, 1_000_000))


@require("netns")
@pytest.mark.parametrize("is_full", [True, False])
async def test_a_client_whose_machine_vanished_is_ended(is_full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_peers, "PATIENCE_S", 0.5)
    monkeypatch.setattr(dead_peers, "ROUND_S", 0.05)
    with Machines(1) as machines, machines.entered(), socket.create_server((machines.hub.data, 0)) as listener:
        host, port = listener.getsockname()
        program = f"import socket, time; client = socket.create_connection(({host!r}, {port})); "
        if not is_full:
            program += "client.recv(20_000_000, socket.MSG_WAITALL); "
        program += "print(1, flush=True); time.sleep(1000)"
        async with full(listener, lambda: machines[0].running(program)) as (transport, process):
            await asyncio.get_running_loop().run_in_executor(None, process.stdout.readline)
            await until(lambda: (state := tcp_state(transport)) and not state.unanswered and state.heard_ms <= state.sent_ms)
            machines.part(machines.hub, machines[0])
            transport.write(b"x")
            connections = OpenConnections()
            connections.sources.append(lambda: [OpenConnection("toymq", 1, 0, transport, transport.abort)])
            peers = DeadPeers(connections, asyncio.get_running_loop(), SystemClock())
            peers.start()
            await until(transport.is_closing)
            peers.stop()
