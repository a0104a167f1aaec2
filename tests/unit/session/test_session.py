"""The cost of a session's turn beside its commands. Contract: delivery.md, "Sessions"."""

import asyncio
import gc
from pathlib import Path
from typing import cast

import pytest
import uvloop

from tests.support.in_process import serving
from tests.support.sim_event_loop import SimTransport
from tests.support.sim_served import SimClient, SimServed
from toymq_py.auth.quotas import FLOOR_BYTES, Seat
from toymq_py.protocol import ServerConnection
from toymq_py.session.deliveries import Deliveries
from toymq_py.session.gate import PULLS_MAX
from toymq_py.session.replies import Replies
from toymq_py.session.session import Session
from toymq_py.subscription import Poll


@pytest.mark.parametrize(("size", "messages", "most"), [(200, 100, 0), (1000, 200, 5)])
def test_what_waits_in_the_parser_is_counted_once_for_many_small_publishes(
    size: int, messages: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    counted = ServerConnection.buffered_bytes

    def look(connection: ServerConnection) -> int:
        nonlocal looks
        looks += 1
        return counted.__get__(connection)

    monkeypatch.setattr(ServerConnection, "buffered_bytes", property(look))
    with SimServed() as served:
        client = served.client()
        for _ in range(messages):
            client.send(b"PUB t - %d\n%b\n" % (size, b"x" * size))
            served.advance(0.01)
        served.advance(0.1)  # the last one may still be at the disk
        assert len(client.lines()) == messages
    assert looks <= most, f"{messages} publishes of {size} bytes, and {FLOOR_BYTES} are free"


def test_what_arrives_while_publishes_wait_for_the_disk_is_applied_behind_them() -> None:
    """Found: when a limit was reached meanwhile, later commands were never answered, as the session forgot that it had bytes to
    parse."""
    publish = b"PUB t - 100000\n" + b"x" * 100_000 + b"\n"
    with SimServed(max_held_bytes=1 << 20, seed=2) as served:
        clients = [served.client(publish) for _ in range(12)]
        for _ in range(40):
            served.advance(0.0001)
            for client in clients:
                client.send(b"PING\n")
        served.advance(1)
        for client in clients:
            answers = client.lines()
            assert answers[0].split()[0] in (b"OK", b"ERR")
            assert answers[1:] == [b"PONG"] * 40


def test_what_many_connections_send_at_once_is_bounded_before_their_turns() -> None:
    """Found: each connection held a MiB of unparsed bytes, and a body as large: the kernel killed a broker in a container of
    200 MiB."""
    connections, held, piece = 50, 4 << 20, b"x" * (256 << 10)
    with SimServed(max_held_bytes=held) as served:
        clients = [served.client() for _ in range(connections)]
        served.advance(0.01)
        sessions = list(served.server._sessions)
        for session in sessions:
            session.received(b"PUB t - %d\n" % (1 << 20))
            while cast(SimTransport, session.transport)._reading:
                session.received(piece)
        assert sum(each._reader.count_bytes() for each in sessions) < held + connections * (FLOOR_BYTES + len(piece))
        served.advance(0.1)
        assert served.broker.quotas.held_bytes <= held + (1 << 20), "of the others the bodies are dropped"
        assert 0 < sum(client.received.startswith(b"ERR QUEUE_FULL") for client in clients) < connections


def test_small_parts_of_bodies_count_where_there_are_many() -> None:
    """Found: parts up to 64 KiB did not count: with three thousand of them the kernel killed a broker in 192 MiB."""
    held, part = 1 << 20, 60_000
    with SimServed(max_held_bytes=held) as served:
        clients = [served.client(b"PUB t - %d\n%b" % (part + 1000, b"x" * part)) for _ in range(100)]
        served.advance(1)
        assert sum(session._reader.count_bytes() for session in served.server._sessions) <= held + 2 * part
        refused = sum(client.received.startswith(b"ERR QUEUE_FULL") for client in clients)
        assert 50 < refused < 100
        small = served.client(b"PUB t - 8000\n%b\n" % (b"x" * 8000))
        served.advance(1)
        assert small.received.startswith(b"OK"), "it always passes"


def test_of_connections_whose_bodies_have_no_room_together_one_after_the_other_goes_on() -> None:
    """Found: all of them were refused, again and again."""
    body = b"x" * 400_000
    with SimServed(max_held_bytes=1 << 20) as served:
        clients = [served.client(b"PUB t - %d\n%b" % (len(body) + 1, body)) for _ in range(6)]
        stored = 0
        for _ in range(3):
            served.advance(1)
            assert served.broker.quotas.held_bytes <= (1 << 20) + len(body)
            for client in clients:
                client.send(b"x\nPUB t - %d\n%b" % (len(body) + 1, body))
            served.advance(1)
            before, stored = stored, served.broker.topics["t"].log.committed_id
            assert stored > before


def test_a_fetch_leaves_no_cycle_behind() -> None:
    """Found: a million pipelined FETCHes left 700 MB to the garbage collector, which runs seldom."""
    with SimServed() as served:
        client = served.client(b"PUB t - 1\nx\n" + b"FETCH t 1 1\n" * 10)
        served.advance(1)
        gc.collect()
        gc.disable()
        try:
            client.send(b"FETCH t 1 1\n" * 500)
            served.advance(1)
            assert gc.collect() < 500
        finally:
            gc.enable()


def test_an_ended_session_leaves_no_cycle_behind(tmp_path: Path) -> None:
    """Found: ended sessions left their memory to the garbage collector, which runs seldom: of 9,000 that ended at once 45 MB
    stayed."""

    async def come_and_go() -> None:
        async with serving(tmp_path / "d") as served:
            for commands in (b"PUB t - 1\nx\nSUB t c mode=shared\n", b"SUB t* p\n", b"PING\nPULL none c 1 wait=60000\n"):
                for _ in range(10):
                    wire = await served.connect()
                    wire.send(commands)
                    await wire.line()
                    await wire.close()
            while served.broker.quotas.connections:  # noqa: ASYNC110 (it has no event, and takes a few passes)
                await asyncio.sleep(0)

    def left() -> int:
        return sum(isinstance(each, Session | Replies | Deliveries | Seat | Poll) for each in gc.get_objects())

    gc.collect()
    gc.disable()
    before = left()  # of other tests
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # the transports of others keep their protocol
            runner.run(come_and_go())
            assert left() <= before
    finally:
        gc.enable()


def said(client: SimClient) -> int:
    """Return how many waits were answered, all empty."""
    lines = [line for line in client.lines() if line]
    assert set(lines) <= {b"OK 0", b"BATCH t 0 1 0"}
    return len(lines)


@pytest.mark.parametrize("registered", [True, False], ids=["known", "new"])
@pytest.mark.parametrize("command", [b"PULL t c 1 wait=600000\n", b"FETCH t 1 9 wait=600000\n"])
@pytest.mark.parametrize("count", [PULLS_MAX + 1, 5000])
def test_a_client_that_says_no_more_gets_all_its_answers_at_once(command: bytes, count: int, *, registered: bool) -> None:
    """Found: after the first 128 PULLs were answered, the next ones began to wait anew."""
    with SimServed() as served:
        served.client(b"PUB t - 1\nx\n" + (b"PULL t c 1 visibility=86400000\n" if registered else b"PULL t other 1\n"))
        served.advance(1)
        client = served.client(command.replace(b" c ", b" c " if registered else b" other ") * count)
        served.advance(2)
        client.transport.write_eof()
        served.advance(2)
        assert said(client) == count
        assert client.at_end
        assert served.broker.quotas.connections == 1


@pytest.mark.parametrize(
    ("command", "count", "held"),
    [(b"PULL t c 1 wait=0600000\n", 46_000, 512 << 20), (b"FETCH t 1 9 wait=600000\n", 20_000, 1 << 20)],
)
def test_no_wait_outlasts_a_full_inbox_behind_it(command: bytes, count: int, held: int) -> None:
    """Found: reading was paused as long as the waits lasted, so the broker saw neither the end of the input nor that the client
    was gone."""
    with SimServed(max_held_bytes=held) as served:
        served.client(b"PUB t - 1\nx\nPULL t c 1 visibility=86400000\n")
        served.advance(1)
        client = served.client(command * count)
        served.advance(2)
        (session,) = (each for each in served.server._sessions if each._reader.waiting)
        assert cast(SimTransport, session.transport)._reading
        assert 0 < said(client) < count, "what has room waits"
        client.transport.abort()
        served.advance(0.1)
        assert served.broker.quotas.connections == 1
