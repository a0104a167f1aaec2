"""The load generator without a broker: what it counts, and from when on a latency counts."""

import socket
from collections.abc import Iterator

import pytest

from tests.support.bench_messages import message
from toymq_bench import load
from toymq_bench.errors import BenchError
from toymq_bench.latency import summary_ms
from toymq_bench.load import Meter, Publisher, Schedule, Subscriber
from toymq_bench.toymq_wire import ToymqConsumer, ToymqProducer

MS = 1000


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield the client's end and the broker's end of a connection."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def wire(window: int = 4) -> ToymqProducer:
    return ToymqProducer("t", 0, window, 20, keyed=True)


def keys_in(data: bytes) -> list[bytes]:
    return [line.split()[2] for line in data.split(b"\n") if line.startswith(b"PUB ")]


def answer(theirs: socket.socket) -> int:
    """Answer OK to every publish that has come. Returns: how many."""
    count = len(keys_in(theirs.recv(1 << 20)))
    theirs.sendall(b"OK 7\n" * count)
    return count


def test_a_closed_loop_keeps_its_window_outstanding_and_never_repeats_a_key(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    ours, theirs = pair
    meter = Meter()
    publisher = Publisher(ours, wire(4), meter, window=4)
    publisher.publish(10)
    publisher.publish(11)
    first = keys_in(theirs.recv(1 << 20))
    assert len(first) == 4
    theirs.sendall(b"OK 0\nOK 1\nOK ")
    publisher.on_readable(30)
    publisher.publish(30)
    second = keys_in(theirs.recv(1 << 20))
    assert len(second) == 2, "half a reply completes nothing"
    assert len({*first, *second}) == 6
    assert meter.acked == 2
    assert meter.publish_us == {20: 2}


def stall(publisher: Publisher, theirs: socket.socket) -> None:
    """Act as a broker that answers at once, but not between 10 ms and 110 ms, in steps of 1 ms."""
    for now in range(0, 200 * MS, MS):
        publisher.publish(now)
        if not 10 * MS <= now < 110 * MS:
            theirs.setblocking(False)
            try:
                answer(theirs)
            except BlockingIOError:
                continue
            publisher.on_readable(now)


def test_a_stall_is_charged_to_every_message_that_was_due_in_it(pair: tuple[socket.socket, socket.socket]) -> None:
    """Coordinated omission: the closed loop sees one slow message, the open loop a hundred."""
    ours, theirs = pair
    closed, open_ = Meter(), Meter()
    stall(Publisher(ours, wire(1), closed, window=1), theirs)
    other, far = socket.socketpair()
    with other, far:
        stall(Publisher(other, wire(1), open_, window=1, schedule=Schedule(0, 1 * MS)), far)
    assert sum(count for latency, count in closed.publish_us.items() if latency > 1 * MS) == 1
    assert summary_ms(closed.publish_us, "publish")["publish_p90_ms"] <= 0.001
    assert open_.acked == 200
    slow = {latency: count for latency, count in open_.publish_us.items() if latency > 0}
    assert slow == {wait * MS: 1 for wait in range(1, 101)}, "due at 10 ms waits 100, due at 11 ms waits 99, …"
    assert summary_ms(open_.publish_us, "publish")["publish_p90_ms"] == pytest.approx(80, abs=1)


def test_a_schedule_returns_each_time_once_however_late_it_is_asked() -> None:
    schedule = Schedule(100, 2.5)
    assert schedule.due(99) == []
    assert schedule.due(106) == [100, 102, 105]
    assert schedule.due(106) == []
    assert schedule.next_us == 107.5


def test_a_rate_that_the_broker_cannot_keep_ends_the_run(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "BEHIND_MAX", 10)
    publisher = Publisher(pair[0], wire(), Meter(), window=1, schedule=Schedule(0, MS))
    publisher.publish(9 * MS)
    with pytest.raises(BenchError, match="does not keep up"):
        publisher.publish(10 * MS)


def test_budget_and_backlog_hold_a_publisher_back(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    meter = Meter(budget=5, backlog_max=3)
    publisher = Publisher(ours, wire(100), meter, window=100)
    publisher.publish(1)
    assert meter.sent == 3
    meter.received = 3
    publisher.publish(2)
    publisher.publish(3)
    assert meter.sent == 5
    assert len(keys_in(theirs.recv(1 << 20))) == 5


def test_more_replies_than_publishes_are_noticed(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    publisher = Publisher(ours, wire(), Meter(), window=2)
    publisher.publish(1)
    theirs.sendall(b"OK 1\n" * 3)
    with pytest.raises(BenchError, match="more replies"):
        publisher.on_readable(2)


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_a_consumer_counts_the_same_however_the_bytes_arrive(step: int, pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    meter = Meter()
    subscriber = Subscriber(ours, ToymqConsumer("t", "c", 20, keyed=True), meter)
    data = message(0, 100) + b"OK 1\n" + message(1, 100) + message(2, 250) + b"OK 2\n"
    for start in range(0, len(data), step):
        theirs.sendall(data[start : start + step])
        subscriber.on_readable(300)
    assert meter.delivery_us == {200: 2, 50: 1}
    acked = theirs.recv(1 << 16).decode().splitlines()
    assert acked == (["ACK t c 0-2"] if step == 1000 else ["ACK t c 0-0", "ACK t c 1-1", "ACK t c 2-2"])
