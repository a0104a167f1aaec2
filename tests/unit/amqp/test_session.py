"""What anyone may send before the login, and what a turn of a connection costs. Contract: docs/security.md, "Limits"."""

import asyncio
import gc
import logging
import random
from collections.abc import AsyncIterator
from contextlib import closing
from math import inf
from typing import Any

import pytest

from tests.support.call_counts import counted_calls
from tests.support.in_process import serving
from tests.support.recorded_sessions import CLIENTS, sides
from tests.support.sim_disk import SimDisk
from toymq_py.amqp import AmqpServer, frames, methods
from toymq_py.amqp.connection import AmqpConnection
from toymq_py.amqp.frames import HEADER, LOGIN_FRAME_MAX, PROTOCOL_HEADER, frame
from toymq_py.amqp.handshake import Handshake
from toymq_py.amqp.login import PASSWORD_BYTES_MAX
from toymq_py.amqp.methods import Method
from toymq_py.amqp.server import CLOSED_BY_OPERATOR
from toymq_py.amqp.session import SHUTDOWN, Session
from toymq_py.auth.quotas import Seat
from toymq_py.clock import SystemClock

MANY = {f"{number}": True for number in range(20_000)}


class Transport(asyncio.Transport):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: Any) -> None:
        self.written += data

    def writelines(self, list_of_data: Any) -> None:
        self.written += b"".join(list_of_data)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def is_reading(self) -> bool:
        return True

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...


class Rig:
    """A connection whose turns a test takes."""

    def __init__(self, server: AmqpServer) -> None:
        self.session: Session = server._session("127.0.0.1")
        self.transport = Transport()
        self.session.connection_made(self.transport)
        self._read = AmqpConnection(frame_max=131_072, body_bytes_max=0, channel_max=9, expects_header=False)

    def came(self, data: bytes) -> list[Method]:
        """Receive bytes and take turns until all are applied. Returns: the broker's methods."""
        self.session.data_received(data)
        while self.session._turn(inf):
            pass
        self._read.received(self.transport.written)
        self.transport.written = b""
        with closing(self._read.events()) as events:  # type: ignore[type-var]
            return [what for _, what in events if isinstance(what, Method)]


@pytest.fixture
async def server() -> AsyncIterator[AmqpServer]:
    async with serving("/data/d", fs=SimDisk(random.Random(1))) as served:
        server = AmqpServer(served.broker, SystemClock(), asyncio.get_running_loop())
        yield server
        for session in list(server._sessions):
            session.connection_lost(None)
        server.vhosts.close()


@pytest.fixture
def rig(server: AmqpServer) -> Rig:
    return Rig(server)


def start_ok(properties: dict[str, Any], password: str = "guest") -> bytes:
    return methods.encode(
        0, "connection.start-ok", mechanism="PLAIN", response=f"\0guest\0{password}".encode(), locale="en_US",
        client_properties=properties,
    )  # fmt: skip


LOGIN = b"".join((
    start_ok({}), methods.encode(0, "connection.tune-ok", channel_max=9, frame_max=131_072),
    methods.encode(0, "connection.open"), methods.encode(1, "channel.open"),
))  # fmt: skip


async def test_a_frame_before_the_login_is_refused_by_its_size_before_it_costs_anything(rig: Rig) -> None:
    """Found by an attack: a login of 130 KB was decoded before its token was looked at, 16 to 24 ms for each."""
    assert [method.name for method in rig.came(PROTOCOL_HEADER)] == ["connection.start"]
    login = start_ok(MANY)
    with counted_calls() as counted:
        (refused,) = rig.came(login)
    text = f"FRAME_ERROR - a frame of {len(login) - 8} bytes exceeds the limit before connection.tune-ok, {LOGIN_FRAME_MAX}"
    assert (refused.name, refused["reply_code"], refused["reply_text"]) == ("connection.close", 501, text)
    assert counted.calls < 1000, "it has 20,000 values"


async def test_a_long_password_and_the_properties_of_a_client_have_room_in_a_login(rig: Rig) -> None:
    rig.came(PROTOCOL_HEADER)
    (answer,) = rig.came(start_ok({"connection_name": "x" * 3000}, "p" * PASSWORD_BYTES_MAX))
    assert answer.name == "connection.tune"


@pytest.mark.parametrize("client", CLIENTS)
def test_logins_of_client_libraries_are_a_fraction_of_the_limit(client: str) -> None:
    for data, of_client in sides(client):
        if of_client:
            reader = frames.FrameReader(LOGIN_FRAME_MAX)
            reader.received(data[len(PROTOCOL_HEADER) :])
            _, _, payload = next(iter(reader.frames()))
            assert methods.decode(payload).name == "connection.start-ok"
            assert len(payload) < LOGIN_FRAME_MAX / 8


async def test_no_message_is_kept_before_the_login(rig: Rig) -> None:
    """The body of one counted as held, up to the share of its address."""
    rig.came(PROTOCOL_HEADER)
    head = frame(HEADER, 1, b"\0\x3c\0\0" + (1_000_000).to_bytes(8) + b"\0\0")
    (refused,) = rig.came(methods.encode(1, "basic.publish", routing_key="q") + head)
    text = "CHANNEL_ERROR - channel 1 before connection.tune-ok"
    assert (refused.name, refused["reply_text"]) == ("connection.close", text)


async def test_behind_the_login_frames_are_as_large_as_was_agreed(rig: Rig) -> None:
    (*_, answer) = rig.came(PROTOCOL_HEADER + LOGIN)
    assert answer.name == "channel.open-ok"
    large = methods.encode(1, "exchange.declare", exchange="amq.topic", passive=True, arguments={"a": "x" * 100_000})
    assert [method.name for method in rig.came(large)] == ["exchange.declare-ok"]
    (refused,) = rig.came(frame(HEADER, 1, bytes(131_072)))
    assert "exceeds frame_max 131072" in refused["reply_text"]


async def test_the_clock_is_looked_at_behind_each_event(rig: Rig) -> None:
    """One of 128 KiB with a table takes 20 ms, and there were sixteen until the end of a turn was asked for."""
    rig.came(PROTOCOL_HEADER + LOGIN)
    costly = methods.encode(1, "exchange.declare", exchange="amq.topic", passive=True, arguments={"a": "b"})
    rig.session.data_received(costly * 5 + methods.encode(0, "connection.close"))
    left = rig.session._connection.unread_bytes
    for _ in range(5):
        assert rig.session._turn(-inf), "there is more"
        left -= len(costly)
        assert rig.session._connection.unread_bytes == left


async def test_a_password_that_is_too_long_is_refused_by_name(rig: Rig) -> None:
    """It was a syntax error, "a password has 4096 bytes at most"."""
    rig.came(PROTOCOL_HEADER)
    (refused,) = rig.came(start_ok({}, "p" * (PASSWORD_BYTES_MAX + 1)))
    text = "ACCESS_REFUSED - login was refused: the password has 4097 bytes, 4096 are the most"
    assert (refused.name, refused["reply_code"], refused["reply_text"]) == ("connection.close", 403, text)


async def test_each_close_by_the_broker_has_its_reason_in_the_log(server: AmqpServer, caplog: pytest.LogCaptureFixture) -> None:
    """Found: a connection without a login, of another protocol, or that an operator closed, ended without a line."""
    caplog.set_level(logging.INFO, "toymq_py.amqp")

    def logged() -> str:
        (record,) = caplog.records
        caplog.clear()
        return record.getMessage().partition(": ")[2]

    stranger = Rig(server).session
    stranger.data_received(b"GET / HTTP/1.1\r\n\r\n")
    stranger._turn(inf)
    assert logged() == "its first bytes are not the protocol header of AMQP 0-9-1"
    rig = Rig(server)
    late = rig.session._deadline._timer
    assert late is not None
    late._callback()  # type: ignore[attr-defined]
    assert logged() == "no login within 10 s"
    Rig(server).session.close_with(CLOSED_BY_OPERATOR)
    assert logged() == "CONNECTION_FORCED - an operator closed this connection"
    server._guarded = True
    seat = Rig(server).session.seat
    assert seat is not None
    seat.evict()
    assert logged() == "without a login, closed to make room for another"
    server._stopping.set()
    Rig(server)
    assert logged() == "the broker is shutting down"
    rig.session.close_with(SHUTDOWN)
    assert not caplog.records, "the broker says that it stops"


async def test_a_connection_that_is_gone_without_channels_leaves_no_cycle_behind(server: AmqpServer) -> None:
    """Found: the parts of a session referred back to it, so only the garbage collector, which runs seldom, freed it."""

    def left() -> int:
        return sum(isinstance(each, Session | Handshake | Seat) for each in gc.get_objects())

    def come_and_go(sent: bytes) -> None:
        rig = Rig(server)
        rig.came(sent)
        rig.session.connection_lost(None)

    login = LOGIN.removesuffix(methods.encode(1, "channel.open"))
    gc.collect()
    gc.disable()
    before = left()  # of other tests
    try:
        for sent in (PROTOCOL_HEADER, PROTOCOL_HEADER + login):
            come_and_go(sent)
            for _ in range(5):
                await asyncio.sleep(0)  # the loop forgets the turn that was due
            assert left() <= before, sent
    finally:
        gc.enable()
