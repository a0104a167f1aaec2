"""Work queues as clients see them: shared sessions, PULL and its wait, patterns; over TCP, the broker in this process."""

import asyncio
import json
from collections import Counter
from pathlib import Path

from tests.support.in_process import AsyncWire, InProcess, serving


async def connect(served: InProcess, count: int) -> list[AsyncWire]:
    return [await served.connect() for _ in range(count)]


async def inflight(wire: AsyncWire, topic: bytes = b"t") -> int:
    described = json.loads(await wire.body(await wire.ask(b"DESCRIBE %b\n" % topic)))
    return sum(consumer["inflight"] for consumer in described["consumers"])


async def waiting(served: InProcess, pulls: int) -> None:
    """Wait until so many PULLs wait in the broker: no event tells that the other end of a connection has looked."""
    async with asyncio.timeout(10):
        while sum(session._deliveries.pull is not None for session in served.server._sessions) < pulls:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def work_off(worker: AsyncWire, seen: set[int], until: int) -> None:
    """Read messages and ack them, skipping the replies to acks, until ``until`` messages were seen."""
    while len(seen) < until:
        line = (await worker.line()).split(b" ")
        if line[0] == b"MSG":
            await worker.read(int(line[6]) + 1)
            seen.add(int(line[2]))
            worker.send(b"ACK t c %b\n" % line[2])
        else:
            assert line == [b"OK", b"1"]


async def test_a_waiting_pull_is_answered_by_the_next_publish_and_holds_only_replies(tmp_path: Path) -> None:
    async with serving(tmp_path / "d") as served:
        worker, other = await connect(served, 2)
        assert await worker.ask(b"SUB u c\n") == b"OK 1"
        worker.send(b"PULL t c 5 wait=60000\nPING\nPUB u - 1\nx\n")
        assert await worker.message() == (0, 1, b"x"), "the PUB behind it was executed, and its delivery does not wait"
        await waiting(served, 1)
        other.send(b"PUB t - 1\ny\nPUB t - 1\nz\n")
        assert [await other.line(), await other.line()] == [b"OK 0", b"OK 1"]
        assert [await worker.message(), await worker.message()] == [(0, 1, b"y"), (1, 1, b"z")]
        assert [await worker.line() for _ in range(3)] == [b"OK 2", b"PONG", b"OK 0"]


async def test_pulls_that_wait_are_served_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    async with serving(tmp_path / "d") as served:
        *workers, publisher = await connect(served, 4)
        for n, worker in enumerate(workers):
            worker.send(b"PULL t c 5 wait=60000\n")
            await waiting(served, n + 1)
        for n, worker in enumerate(workers):
            assert await publisher.ask(b"PUB t - 1\nx\n") == b"OK %d" % n
            assert await worker.message() == (n, 1, b"x")
            assert await worker.line() == b"OK 1"


async def test_a_poller_that_is_gone_loses_nothing_and_counts_no_attempt(tmp_path: Path) -> None:
    async with serving(tmp_path / "d") as served:
        gone, timed_out, publisher = await connect(served, 3)
        gone.send(b"PULL t c 5 wait=60000\n")
        await waiting(served, 1)
        assert await timed_out.ask(b"PULL t c 5 wait=1\n") == b"OK 0"
        gone.writer.transport.abort()
        assert await publisher.ask(b"PUB t - 1\nx\n") == b"OK 0"
        publisher.send(b"PULL t c 5 wait=60000\n")
        assert await publisher.message() == (0, 1, b"x")
        assert await publisher.line() == b"OK 1"


async def test_a_pull_behind_one_that_waits_keeps_nothing_from_others(tmp_path: Path) -> None:
    async with serving(tmp_path / "d") as served:
        worker, other = await connect(served, 2)
        worker.send(b"PULL u c 1 wait=60000\nPULL t c 1 wait=60000\n")
        await waiting(served, 1)
        assert await other.ask(b"PUB t - 1\nx\n") == b"OK 0"
        other.send(b"PULL t c 1 wait=60000\n")
        assert await other.message() == (0, 1, b"x")
        assert await other.line() == b"OK 1"
        other.send(b"NACK t c 0 delay=0\nPUB u - 1\ny\n")
        assert [await other.line(), await other.line()] == [b"OK 1", b"OK 0"]
        assert await worker.message() == (0, 1, b"y")
        assert await worker.line() == b"OK 1"
        assert await worker.message() == (0, 2, b"x")
        assert await worker.line() == b"OK 1"


async def test_the_end_of_the_stream_cuts_the_wait_short(tmp_path: Path) -> None:
    async with serving(tmp_path / "d") as served:
        wire, last = await connect(served, 2)
        wire.send(b"PUB t - 1\nx\nPULL u c 1 wait=60000\nPULL u d 1 wait=60000\nPING\n")
        wire.writer.write_eof()
        assert await wire.rest() == b"OK 0\nOK 0\nOK 0\nPONG\n"
        last.send(b"PULL t c 1 wait=60000\n")
        last.writer.write_eof()
        assert (await last.rest()).endswith(b" - 1\nx\nOK 1\n"), "what is there is still handed out"


async def test_quit_ends_a_wait(tmp_path: Path) -> None:
    """A client can leave at once although its PULL still waits."""
    async with serving(tmp_path / "d") as served:
        leaving, other = await connect(served, 2)
        leaving.send(b"PULL t c 1 wait=3600000\n")
        await waiting(served, 1)
        leaving.send(b"QUIT\n")
        assert await leaving.rest() == b"OK 0\nOK 0\n"
        assert await other.ask(b"PUB t - 1\nx\n") == b"OK 0"
        other.send(b"PULL t c 1\n")
        assert await other.message() == (0, 1, b"x"), "nothing was leased to it"


async def test_leases_of_a_pull_outlive_its_session(tmp_path: Path) -> None:
    async with serving(tmp_path / "d") as served:
        first, second = await connect(served, 2)
        assert await first.ask(b"PUB t - 1\nx\n") == b"OK 0"
        first.send(b"PULL t c 1 visibility=300\n")
        assert await first.message() == (0, 1, b"x")
        assert await first.line() == b"OK 1"
        await first.close()
        assert await second.ask(b"PULL t c 1\n") == b"OK 0"
        assert await inflight(second) == 1
        second.send(b"PULL t c 1 wait=60000\n")
        assert await second.message() == (0, 2, b"x"), "its deadline ends it"


async def test_a_worker_that_does_not_read_blocks_nobody(tmp_path: Path) -> None:
    """The stalled worker leases what fits into its socket; the other worker gets all the rest, and the stalled one's leases
    when it is gone."""
    async with serving(tmp_path / "d") as served:
        deaf, worker, publisher = await connect(served, 3)
        for wire in (deaf, worker):
            assert await wire.ask(b"SUB t c mode=shared\n") == b"OK 1"
        deaf.writer.transport.pause_reading()
        count, body = 24, bytes(1 << 20)
        publisher.send((b"PUB t - %d\n%b\n" % (len(body), body)) * count)
        for n in range(count):
            assert await publisher.line() == b"OK %d" % n
        seen: set[int] = set()
        session = min(served.server._sessions, key=lambda session: session.number)
        await work_off(worker, seen, 1)
        async with asyncio.timeout(10):
            while not session._writer.paused:  # noqa: ASYNC110
                await asyncio.sleep(0)
        leased = session._deliveries.by_name["t"].inflight
        await work_off(worker, seen, count - leased)
        assert len(seen) >= count // 2, "the socket of the deaf one holds a few MiB at most"
        deaf.writer.transport.abort()
        await work_off(worker, seen, count)


async def test_pause_holds_only_its_own_session(tmp_path: Path) -> None:
    async with serving(tmp_path / "d") as served:
        held, worker, publisher = await connect(served, 3)
        for wire in (held, worker):
            assert await wire.ask(b"SUB t c mode=shared\n") == b"OK 1"
        assert await held.ask(b"PAUSE\n") == b"OK 0"
        for n in range(6):
            assert await publisher.ask(b"PUB t - 1\nx\n") == b"OK %d" % n
        assert [(await worker.message())[0] for _ in range(6)] == list(range(6))
        await held.nothing_before_pong()
        assert await held.ask(b"RESUME\n") == b"OK 0"
        worker.send(b"PAUSE\n")
        assert await worker.line() == b"OK 0"
        assert await publisher.ask(b"PUB t - 1\nx\n") == b"OK 6"
        assert (await held.message())[0] == 6


async def test_touch_uses_the_sessions_own_visibility(tmp_path: Path) -> None:
    async with serving(tmp_path / "d", visibility_ms=3_600_000) as served:
        brief, patient, publisher = await connect(served, 3)
        assert await brief.ask(b"SUB jobs.* c mode=shared visibility=400\n") == b"OK 0"
        assert await publisher.ask(b"PUB jobs.a - 1\nx\n") == b"OK 0"
        assert await brief.message() == (0, 1, b"x")
        assert await brief.ask(b"TOUCH jobs.a c 0\n") == b"OK 1"
        assert await brief.message() == (0, 2, b"x"), "after its own 400 ms"
        assert await patient.ask(b"TOUCH jobs.a c 0\n") == b"OK 1"
        await brief.nothing_before_pong()
        (lease,) = served.broker.topic("jobs.a").consumers["c"]._runs
        assert lease.deadline - served.broker._clock.monotonic() > 3000, "after the topic's hour"


async def test_shutting_down_answers_who_waits_and_closes_a_pattern_by_its_name(tmp_path: Path) -> None:
    async with serving(tmp_path / "d") as served:
        poller, subscriber = await connect(served, 2)
        poller.send(b"PULL a.* c 1 wait=60000\nPULL b c 1 wait=60000\n")
        assert await subscriber.ask(b"SUB a.* d\n") == b"OK 0"
        assert await subscriber.ask(b"PUB a.x - 1\nx\n") == b"OK 0"
        assert await subscriber.message() == (0, 1, b"x")
        assert await subscriber.ask(b"ACK a.x d 0\n") == b"OK 1"
        assert (await poller.message())[2] == b"x"
        assert await poller.line() == b"OK 1"
        await waiting(served, 1)
        served.server.stop()
        assert await poller.rest() == b"OK 0\n"
        assert await subscriber.rest() == b"CLOSED a.* d SHUTTING_DOWN\n"


async def test_eight_workers_some_of_which_die(tmp_path: Path) -> None:
    """Every message is done, none is with two workers at once, and a worker that dies gives back its messages with their
    attempts."""
    async with serving(tmp_path / "d") as served:
        count = 400
        publisher = await served.connect()
        workers = await connect(served, 8)
        for worker in workers:
            assert await worker.ask(b"SUB jobs.* c mode=shared window=4\n") == b"OK 0"
        publisher.send(b"".join(b"PUB jobs.%d - 1\nx\n" % (n % 3) for n in range(count)))
        held: dict[tuple[bytes, int], AsyncWire] = {}
        attempts: Counter[tuple[bytes, int]] = Counter()
        dead = 0
        done: set[tuple[bytes, int]] = set()

        async def work(worker: AsyncWire, most: int) -> None:
            nonlocal dead
            while len(done) < count and most:
                line = (await worker.line()).split(b" ")
                if line[0] != b"MSG":
                    continue
                await worker.read(int(line[6]) + 1)
                message = line[1], int(line[2])
                assert message not in held, f"{message} is with another worker"
                assert attempts[message] < int(line[3]) <= dead + 1, "each attempt but the last was with one that died"
                held[message], attempts[message] = worker, int(line[3])
                most -= 1
                if most:
                    done.add(message)
                    del held[message]
                    worker.send(b"ACK %b c %d\n" % message)
            if not most:
                dead += 1  # it dies with this one and up to three more, which it never saw
                worker.writer.transport.abort()
                for message in [message for message, holder in held.items() if holder is worker]:
                    del held[message]

        async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(work(worker, 20 if n % 2 else -1)) for n, worker in enumerate(workers)]
            while len(done) < count and not any(task.done() and task.exception() for task in running):  # noqa: ASYNC110
                await asyncio.sleep(0)
            for task in running:
                task.cancel()
        assert (len(done), dead) == (count, 4)
