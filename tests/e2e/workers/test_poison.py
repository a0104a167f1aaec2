"""A message that kills or hangs its worker, on a partitioned topic of several worker processes. ADR 0256, 0262."""

import json
from collections import deque
from pathlib import Path

from tests.support.broker_process import Wire
from tests.support.worker_processes import serving

COUNT = 6
HEALTHY = 59


def work_until_poison(wire: Wire, done: set[bytes]) -> bool:
    """Take messages of all partitions, and ack one after the other. Each ack is answered before the next message is begun: an
    ack that was only sent is lost with the connection. Returns: whether the poison was reached, which is not acked."""
    assert wire.ask(b"SUB orders c mode=shared window=30\n") == b"OK %d" % COUNT
    waiting, acks = deque[tuple[bytes, bytes, bytes]](), 0
    while len(done) < HEALTHY:
        if waiting and not acks:
            topic, msg_id, body = waiting.popleft()
            if body == b"poison\n":
                return True
            wire.send(b"ACK %b c %b\n" % (topic, msg_id))
            acks = 1
            done.add(b"%b %b" % (topic, msg_id))
        tokens = wire.line().split(b" ")
        if tokens[0] == b"MSG":
            waiting.append((tokens[1], tokens[2], wire.read(int(tokens[6]) + 1)))
        else:
            assert tokens == [b"OK", b"1"]
            acks = 0
    return False


def test_a_message_that_kills_its_worker_takes_no_other_partition_along(tmp_path: Path) -> None:
    """Found: in each partition of which the worker held messages, the lowest one counted an attempt: most dead letters were
    healthy."""
    done = set[bytes]()
    with serving(tmp_path / "data", 2, "--max-attempts", "4") as workers:
        workers.ready(2)
        with workers.wire(0) as wire:
            assert wire.ask(b"CREATE orders partitions=%d\n" % COUNT) == b"OK 0"
            for number in range(HEALTHY + 1):
                body = b"poison" if number == 20 else b"fine"
                assert wire.ask(b"PUB orders key-%d %d\n%b\n" % (number, len(body), body)).startswith(b"OK ")
        losses = 0
        while True:
            with workers.wire(losses % 2) as wire:
                if not work_until_poison(wire, done):
                    break
            losses += 1
        with workers.wire(0) as wire:
            assert wire.ask(b"PULL orders.dlq c 1 wait=10000\n").startswith(b"MSG orders#")
            while wire.line() != b"OK 1":
                pass
            topics = json.loads(wire.read(int(wire.ask(b"TOPICS\n").split(b" ")[1]) + 1))
    letters = [topic["messages"] for topic in topics if topic["topic"].endswith(".dlq")]
    assert (letters, losses) == ([1], 4)


def test_a_client_that_hangs_counts_an_attempt_of_one_message_at_a_time_over_all_workers(tmp_path: Path) -> None:
    """Found: each worker process counted an attempt when its lease ended, so healthy messages that no handler had seen became
    dead letters, too."""
    with serving(tmp_path / "data", 2) as workers:
        workers.ready(2)
        with workers.wire(0) as wire:
            assert wire.ask(b"CREATE orders partitions=%d\n" % COUNT) == b"OK 0"
            for number in range(2 * COUNT):
                assert wire.ask(b"PUB orders key-%d 1\nx\n" % number).startswith(b"OK ")
        came: dict[bytes, list[int]] = {}
        with workers.wire(0) as hung:
            assert hung.ask(b"SUB orders c mode=shared window=1 visibility=1000\n") == b"OK %d" % COUNT
            while sum(len(attempts) > 1 for attempts in came.values()) < 2:
                _, topic, msg_id, attempt, *_, size = hung.line().split(b" ")
                hung.read(int(size) + 1)
                came.setdefault(b"%b %b" % (topic, msg_id), []).append(int(attempt))
    first_round = [attempts for attempts in came.values() if len(attempts) > 1]
    assert sorted(first_round) == [[1, 1], [1, 2]], "each of the two workers had one of them"
