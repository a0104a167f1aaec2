"""Delivery as sessions see it, over TCP against the real broker in this process."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.in_process import AsyncWire, InProcess, serving
from toymq_py.session.listing import TOPICS_PER_TURN
from toymq_py.storage.record import iter_frames


async def publish(wire: AsyncWire, count: int, topic: bytes = b"t", size: int = 1) -> None:
    bodies = [b"%d" % (n % 10) if size == 1 else bytes(size) for n in range(count)]
    wire.send(b"".join(b"PUB %b - %d\n%b\n" % (topic, len(body), body) for body in bodies))
    for n in range(count):
        assert await wire.line() == b"OK %d" % n


async def stats(served: InProcess) -> dict[str, object]:
    wire = await served.connect()
    found = json.loads(await wire.body(await wire.ask(b"STATS\n")))
    await wire.close()
    return dict(found)


async def until(holds: Callable[[], bool]) -> None:
    """Let the loop run until something holds: no event tells that the other end of a connection has done its work."""
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_every_consumer_sees_every_message(tmp_path: Path) -> None:
    async with serving(tmp_path / "d") as served:
        first, second = await served.connect(), await served.connect()
        for wire, name in ((first, b"a"), (second, b"b")):
            assert await wire.ask(b"SUB t %b\n" % name) == b"OK 1"
        publisher = await served.connect()
        await publish(publisher, 5)
        for wire in (first, second):
            assert [await wire.message() for _ in range(5)] == [(n, 1, b"%d" % n) for n in range(5)]


async def test_a_newer_subscriber_takes_over_at_once(tmp_path: Path) -> None:
    async with serving(tmp_path / "d") as served:
        old, new = await served.connect(), await served.connect()
        await publish(old, 2)
        await old.ask(b"SUB t c\n")
        assert [await old.message() for _ in range(2)] == [(0, 1, b"0"), (1, 1, b"1")]
        assert await new.ask(b"SUB t c\n") == b"OK 1"
        assert await old.line() == b"CLOSED t c TAKEN_OVER"
        assert [(await new.message())[:2] for _ in range(2)] == [(0, 2), (1, 1)], "what was inflight comes to the new one"
        assert await old.ask(b"ACK t c 0\n") == b"OK 1", "the work was done, whoever holds the lease"
        await old.nothing_before_pong()


async def test_a_lost_connection_returns_what_was_inflight(tmp_path: Path) -> None:
    async with serving(tmp_path / "d") as served:
        wire = await served.connect()
        await publish(wire, 3)
        await wire.ask(b"SUB t c window=2\n")
        assert [(await wire.message())[0] for _ in range(2)] == [0, 1]
        wire.writer.transport.abort()
        again = await served.connect()
        await again.ask(b"SUB t c\n")
        assert [(await again.message())[:2] for _ in range(3)] == [(0, 2), (1, 1), (2, 1)]


async def test_an_expired_lease_comes_again_lowest_id_first(tmp_path: Path) -> None:
    async with serving(tmp_path / "d") as served:
        wire = await served.connect()
        await publish(wire, 3)
        await wire.ask(b"SUB t c visibility=300\n")
        for attempt in (1, 2, 3):
            assert [(await wire.message())[:2] for _ in range(3)] == [(0, attempt), (1, 1), (2, 1)], "the lowest counts"
        assert await wire.ask(b"TOUCH t c 0-2 visibility=600000\n") == b"OK 3"
        other = await served.connect()
        assert await other.ask(b"PUB t - 1\nx\n") == b"OK 3"
        assert [(await wire.message())[:2] for _ in range(3)] == [(3, 1)] * 3, "what was touched stays away, and is lower"


async def test_nack_with_a_delay_and_with_backoff(tmp_path: Path) -> None:
    async with serving(tmp_path / "d", nack_backoff_min_ms=20) as served:
        wire = await served.connect()
        await publish(wire, 1)
        await wire.ask(b"SUB t c\n")
        await wire.message()
        assert await wire.ask(b"NACK t c 0 delay=3600000\n") == b"OK 1"
        await wire.nothing_before_pong()
        await wire.ask(b"UNSUB t c\n")
        await wire.ask(b"SUB t c\n")
        await wire.nothing_before_pong()
        other = await served.connect()
        assert await other.ask(b"PUB t - 1\nx\n") == b"OK 1"
        assert (await wire.message())[:2] == (1, 1), "what is put off blocks nothing behind it"
        assert await wire.ask(b"NACK t c 1 delay=20\n") == b"OK 1"
        assert (await wire.message())[:2] == (1, 2)
        assert await wire.ask(b"NACK t c 1\n") == b"OK 1"
        assert (await wire.message())[:2] == (1, 3)


async def test_the_window_bounds_what_is_inflight(tmp_path: Path) -> None:
    async with serving(tmp_path / "d") as served:
        wire = await served.connect()
        await publish(wire, 10)
        await wire.ask(b"SUB t c window=3\n")
        assert [(await wire.message())[0] for _ in range(3)] == [0, 1, 2]
        await wire.nothing_before_pong()
        wire.send(b"ACK t c 1\n")
        assert await wire.line() == b"OK 1"
        assert (await wire.message())[0] == 3, "an ack in the middle makes room for one"
        assert await wire.ask(b"NACK t c 0 delay=0\n") == b"OK 1"
        assert (await wire.message())[:2] == (0, 2), "redeliveries count as well"
        await wire.nothing_before_pong()


async def test_fetch_is_the_log_byte_for_byte(tmp_path: Path) -> None:
    async with serving(tmp_path / "d") as served:
        wire = await served.connect()
        await publish(wire, 5)
        line = await wire.ask(b"FETCH t 1 3\n")
        assert line.startswith(b"BATCH t 3 4 ")
        frames = await wire.body(line)
        log = (tmp_path / "d/topics/t/00000000000000000000.log").read_bytes()
        assert frames in log
        assert [frame.msg_id for frame in iter_frames(frames)] == [1, 2, 3]
        line = await wire.ask(b"FETCH t 0 100 max_bytes=1\n")
        assert line.startswith(b"BATCH t 1 1 "), "at least one record comes"
        await wire.body(line)
        assert (await wire.ask(b"FETCH t 0 100 max_bytes=70\n")).startswith(b"BATCH t 2 2 ")


async def test_a_waiting_fetch_holds_replies_but_not_deliveries(tmp_path: Path) -> None:
    async with serving(tmp_path / "d") as served:
        wire, other = await served.connect(), await served.connect()
        await publish(wire, 1)
        await wire.ask(b"SUB u c\n")
        wire.send(b"FETCH t 1 10 wait=60000\nPING\nPUB u - 1\nx\n")
        assert (await wire.message()) == (0, 1, b"x"), "the PUB behind the FETCH was executed, and its delivery does not wait"
        assert await other.ask(b"PUB t - 1\ny\n") == b"OK 1"
        line = await wire.line()
        assert line.startswith(b"BATCH t 1 2 ")
        await wire.body(line)
        assert [await wire.line(), await wire.line()] == [b"PONG", b"OK 0"]


async def test_a_fetch_stops_waiting_when_its_time_is_over(tmp_path: Path) -> None:
    async with serving(tmp_path / "d") as served:
        wire = await served.connect()
        await publish(wire, 1)
        line = await wire.ask(b"FETCH t 1 10 wait=10\n")
        assert (line, await wire.body(line)) == (b"BATCH t 0 1 0", b"")


async def test_an_end_of_stream_gets_its_due_replies(tmp_path: Path) -> None:
    async with serving(tmp_path / "d") as served:
        wire = await served.connect()
        wire.send(b"PUB t - 1\na\nPING\nFETCH t 1 5 wait=60000\n")
        wire.writer.write_eof()
        assert await wire.rest() == b"OK 0\nPONG\nBATCH t 0 1 0\n\n"
        torn = await served.connect()
        torn.send(b"PUB t - 100\nabc")
        torn.writer.write_eof()
        assert await torn.rest() == b"", "a partial command is never executed"
        assert (await stats(served))["torn_total"] == 1


async def test_stats_tell_the_tasks_that_there_are(tmp_path: Path) -> None:
    async with serving(tmp_path / "d") as served:

        async def tasks() -> int:
            """Return the tasks by STATS once only the test's clients are connected: a session ends later than its
            connection."""
            await until(lambda: served.broker.metrics.connections == len(wires))
            return int(str((await stats(served))["tasks"]))

        wires: list[AsyncWire] = []
        before = await tasks()
        wires += [await served.connect() for _ in range(5)]
        assert await tasks() == before, "a session has turns, not tasks"
        while wires:
            await wires.pop().close()
        assert await tasks() == before


async def test_the_reason_of_a_fatal_error_can_be_read(tmp_path: Path) -> None:
    async with serving(tmp_path / "d") as served:
        wire = await served.connect()
        wire.send(b"X" * 5000 + b"\nPING\n" * 1000)
        assert (await wire.rest()).startswith(b"ERR LINE_TOO_LONG ")


async def test_describe_counts(tmp_path: Path) -> None:
    async with serving(tmp_path / "d") as served:
        wire = await served.connect()
        await publish(wire, 10)
        await wire.ask(b"SUB t c window=4\n")
        for _ in range(4):
            await wire.message()
        wire.send(b"PAUSE\nACK t c 1\nNACK t c 2 delay=60000\nDESCRIBE t\n")
        assert [await wire.line() for _ in range(3)] == [b"OK 0", b"OK 1", b"OK 1"]
        topic = json.loads(await wire.body(await wire.line()))
        (consumer,) = topic["consumers"]
        assert (topic["first_id"], topic["next_id"], topic["messages"], topic["state"]) == (0, 10, 10, "ok")
        assert (consumer["ready"], consumer["inflight"], consumer["scheduled"], consumer["backlog"]) == (6, 2, 1, 8)
        assert (consumer["has_acked"], consumer["last_acked"], consumer["sessions"]) == (False, 0, 1)
        assert consumer["oldest_unacked_age_s"] >= 0


@pytest.mark.parametrize(
    ("options", "commands", "answer"),
    [
        ({"max_topics": 2}, b"PUB a - 1\nx\nPUB b - 1\nx\nPUB c - 1\nx\n", b"ERR TOO_MANY_TOPICS"),
        ({"max_consumers": 1}, b"SUB a c\nSEEK a d 0\n", b"ERR TOO_MANY_CONSUMERS"),
        ({"max_subscriptions": 1}, b"SUB a c\nSUB b c\n", b"ERR TOO_MANY_SUBSCRIPTIONS"),
        ({"max_payload_bytes": 10}, b"PUB a - 11\nxxxxxxxxxxx\n", b"ERR PAYLOAD_TOO_LARGE"),
    ],
)
async def test_limits(tmp_path: Path, options: dict[str, int], commands: bytes, answer: bytes) -> None:
    async with serving(tmp_path / "d", **options) as served:
        wire = await served.connect()
        wire.send(commands + b"PING\n")
        lines = []
        while (line := await wire.line()) != b"PONG":
            lines.append(line)
        assert lines[-1].startswith(answer), lines


async def test_one_connection_too_many(tmp_path: Path) -> None:
    async with serving(tmp_path / "d", max_connections=2) as served:
        first, second = await served.connect(), await served.connect()
        assert [await wire.ask(b"PING\n") for wire in (first, second)] == [b"PONG", b"PONG"]
        third = await served.connect()
        assert (await third.rest()).startswith(b"ERR TOO_MANY_CONNECTIONS ")
        await first.close()
        await until(lambda: served.broker.metrics.connections < 2)
        again = await served.connect()
        assert await again.ask(b"PING\n") == b"PONG"


async def test_a_client_that_does_not_read_stops_nobody(tmp_path: Path) -> None:
    """The client gets what fits into its socket; the rest stays on the disk, and attempts count only what was written."""
    async with serving(tmp_path / "d") as served:
        lazy, busy = await served.connect(), await served.connect()
        await lazy.ask(b"SUB t lazy window=100000\n")
        lazy.reader._limit = 1  # type: ignore[attr-defined]  # the stream stops reading from its socket
        await busy.ask(b"SUB t busy window=100000\n")
        publisher = await served.connect()
        body = bytes(100_000)
        for n in range(200):
            publisher.send(b"PUB t - 100000\n%b\n" % body)
            assert await publisher.line() == b"OK %d" % n
            assert (await busy.message())[0] == n
        topic = served.broker.topics["t"]
        inflight = topic.consumers["lazy"].inflight
        assert inflight < 200, "20 MB do not fit into a socket"
        lazy.writer.transport.abort()
        await until(lambda: sum(len(channel.sessions) for channel in topic.channels.values()) < 2)
        delivered = sum(last - first + 1 for first, last, _ in topic.consumers["lazy"].snapshot().attempts)
        assert delivered <= inflight, "what was still in our buffer is not counted"


async def test_deliveries_from_disk_when_the_tail_is_gone(tmp_path: Path) -> None:
    async with serving(tmp_path / "d", segment_bytes=65_536) as served:
        wire = await served.connect()
        await publish(wire, 300, size=1000)
        assert len(served.broker.topics["t"].log.segments) > 3
        await wire.ask(b"SUB t c\n")
        for n in range(300):
            msg_id, _, body = await wire.message()
            assert (msg_id, len(body)) == (n, 1000)


async def test_many_topics_take_turns(tmp_path: Path) -> None:
    async with serving(tmp_path / "d") as served:
        wire = await served.connect()
        for topic in (b"a", b"b", b"c"):
            await publish(wire, 50, topic, size=20_000)
        wire.send(b"PAUSE\nSUB a x\nSUB b x\nSUB c x\nRESUME\n")
        assert [await wire.line() for _ in range(5)] == [b"OK 0", b"OK 1", b"OK 1", b"OK 1", b"OK 0"]
        seen = []
        for _ in range(150):
            line = await wire.line()
            await wire.read(int(line.split(b" ")[6]) + 1)
            seen.append(line.split(b" ")[1])
        assert {seen.count(topic) for topic in (b"a", b"b", b"c")} == {50}
        assert set(seen[:60]) == {b"a", b"b", b"c"}, "none waits until all of another is delivered"


async def test_weak_durability_modes_still_deliver(tmp_path: Path) -> None:
    for mode in ("interval", "never"):
        async with serving(tmp_path / mode, fsync=mode) as served:
            wire = await served.connect()
            await publish(wire, 10)
            assert (await stats(served))["fsync"] == mode
        async with serving(tmp_path / mode, fsync=mode) as served:
            wire = await served.connect()
            assert await wire.ask(b"OFFSETS t\n") == b"OFFSETS t 0 10"


async def test_offsets_at_a_time(tmp_path: Path) -> None:
    async with serving(tmp_path / "d") as served:
        wire = await served.connect()
        await publish(wire, 3)
        assert await wire.ask(b"OFFSETS t at=0\n") == b"OFFSETS t 0 3"
        assert await wire.ask(b"OFFSETS t at=9000000000000\n") == b"OFFSETS t 3 3"
        assert await wire.ask(b"SUB t c start=@9000000000000\n") == b"OK 1"
        await wire.nothing_before_pong()


@pytest.mark.parametrize("count", [0, 1, TOPICS_PER_TURN, 3 * TOPICS_PER_TURN + 1])
async def test_a_long_list_of_topics_is_made_in_turns(tmp_path: Path, count: int) -> None:
    """Another session has its turns in between, and replies keep their order."""
    async with serving(tmp_path / "d") as served:
        wire, other = await served.connect(), await served.connect()
        names = sorted(f"t{n}" for n in range(count))
        wire.send(b"".join(b"PUB %b - 1\nx\n" % name.encode() for name in names))
        for _ in names:
            assert await wire.line() == b"OK 0"
        wire.send(b"PING\nTOPICS\nPING\nSTATS\nTOPICS t1\n")
        assert await other.ask(b"PING\n") == b"PONG"
        assert await wire.line() == b"PONG"
        assert [found["topic"] for found in json.loads(await wire.body(await wire.line()))] == names
        assert await wire.line() == b"PONG"
        found = json.loads(await wire.body(await wire.line()))
        assert [topic["topic"] for topic in found["topics"]] == names
        assert found["publish_total"] == count
        assert len(json.loads(await wire.body(await wire.line()))) == ("t1" in names)


async def test_bodies_that_do_not_end_are_bounded_over_all_connections(tmp_path: Path) -> None:
    """Found: each of many connections could hold a body of ``--max-payload`` as long as it liked."""
    async with serving(tmp_path / "d", max_held_bytes=1 << 20) as served:
        wires = [await served.connect() for _ in range(12)]
        for wire in wires:
            wire.send(b"PUB t k 300001 seq=1\n" + b"x" * 300_000)
        answers = [asyncio.ensure_future(wire.line()) for wire in wires]
        quotas = served.broker.quotas
        await until(lambda: sum(answer.done() for answer in answers) >= 9 and quotas.held_bytes <= 1 << 20)
        refused = [answer.result() for answer in answers if answer.done()]
        assert all(answer.startswith(b"ERR QUEUE_FULL 1048576 bytes of bodies and replies are held") for answer in refused)
        small = await served.connect()
        assert await small.ask(b"PUB u - 1\nx\n") == b"OK 0", "others go on"
        for wire in wires:
            wire.send(b"x\nPING\n")
        for wire, answer in zip(wires, answers, strict=True):
            first = await answer
            assert first.split(b" ")[0] in (b"OK", b"DUP", b"ERR")
            assert await wire.line() == b"PONG", "the body that was dropped is no command"
        await until(lambda: quotas.held_bytes == 0)
        again = wires[next(n for n, answer in enumerate(answers) if answer.result().startswith(b"ERR"))]
        assert (await again.ask(b"PUB t k2 1 seq=1\nx\n")).startswith(b"OK")
        stored = any(answer.result().startswith(b"OK") for answer in answers)
        assert served.broker.topics["t"].log.committed_id == stored + 1, "what was refused is not stored"


async def test_publishes_are_refused_while_memory_is_high(tmp_path: Path) -> None:
    async with serving(tmp_path / "d") as served:
        wire = await served.connect()
        await publish(wire, 1)
        assert await wire.ask(b"SUB t c\n") == b"OK 1"
        assert await wire.message() == (0, 1, b"0")
        assert await wire.ask(b"UNSUB t c\n") == b"OK 0"
        served.broker.quotas.memory_high = True
        said = b"ERR QUEUE_FULL the broker's memory is at its limit (--memory-max); publish again later"
        assert await wire.ask(b"PUB t - 1\nx\n") == said
        assert (await wire.ask(b"SUB t new\n")).startswith(b"ERR TOO_MANY_CONSUMERS the broker's memory is at its limit")
        assert await wire.ask(b"SUB t c\n") == b"OK 1"
        assert (await wire.message())[::2] == (0, b"0")
        assert await wire.ask(b"ACK t c 0\n") == b"OK 1"
        served.broker.quotas.memory_high = False
        await publish(await served.connect(), 1, b"u")
