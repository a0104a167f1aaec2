"""The leader's stream: numbers without a gap, each in the queue of every follower, in one order."""

import threading

import pytest

from toymq_py.replication import operations as ops
from toymq_py.replication.operations import Operation, OperationReader
from toymq_py.replication.stream import Frame, Stream
from toymq_py.replication.tickets import Tickets

LOG = "topics/t/00000000000000000000.log"


class Queue:
    """A ``Sink`` that keeps what it is given."""

    def __init__(self, *, copying: bool = False) -> None:
        self.copying = copying
        self.operations: list[Operation] = []
        self.bytes = b""

    def put(self, operation: Operation, frame: Frame) -> None:
        self.operations.append(operation)
        self.bytes += b"".join(frame)


@pytest.fixture
def stream() -> Stream:
    return Stream(Tickets())


def test_a_follower_gets_all_that_comes_after_it_was_attached(stream: Stream) -> None:
    first, second = Queue(), Queue()
    stream.put(ops.Mkdir, "topics")
    assert stream.attach(first) == 1
    stream.put(ops.Mkdir, "topics/t")
    assert stream.attach(second) == 2
    stream.put(ops.Create, LOG)
    stream.detach(first)
    stream.put(ops.Unlink, LOG)
    assert first.operations == [ops.Mkdir(2, "topics/t"), ops.Create(3, LOG)]
    assert second.operations == [ops.Create(3, LOG), ops.Unlink(4, LOG)]
    assert stream.last == 4


def test_the_frame_is_that_of_the_operation(stream: Stream) -> None:
    queue, reader = Queue(), OperationReader()
    stream.attach(queue)
    stream.begin_write(LOG, 7, b"abc")
    stream.beat(5, 1)
    stream.bye()
    reader.receive(queue.bytes)
    assert [reader.next_operation() for _ in range(4)] == [ops.Write(1, LOG, 7, b"abc"), ops.Beat(2, 5, 1), ops.Bye(3), None]
    assert queue.operations == [ops.Write(1, LOG, 7, b"abc"), ops.Beat(2, 5, 1), ops.Bye(3)]


def test_a_long_write_goes_in_pieces_that_are_not_copied(stream: Stream) -> None:
    queue, data = Queue(), bytes(range(256)) * 10_000
    stream.attach(queue)
    seq = stream.begin_write(LOG, 5, data)
    pieces = [(op.seq, op.offset, len(op.data)) for op in queue.operations if isinstance(op, ops.Write)]
    assert pieces == [(1, 5, 1 << 20), (2, 5 + (1 << 20), 1 << 20), (3, 5 + (2 << 20), len(data) - (2 << 20))]
    assert b"".join(bytes(op.data) for op in queue.operations if isinstance(op, ops.Write)) == data
    assert all(isinstance(op.data, memoryview) and op.data.obj is data for op in queue.operations if isinstance(op, ops.Write))
    assert not stream.is_done(3)
    stream.end(seq)
    assert stream.is_done(3)


def test_what_was_begun_before_a_copy_is_done_before_it_may_begin(stream: Stream) -> None:
    """A write that has its number but is not in the file yet is neither in the stream nor in what the copy reads."""
    early = stream.begin_write(LOG, 0, b"x")
    before = stream.attach(Queue(copying=True))
    late = stream.begin(ops.Truncate, LOG, 0)
    assert not stream.is_done(before)
    stream.end(early)
    assert stream.is_done(before)
    assert not stream.is_done(late)
    stream.end(late)
    assert stream.is_done(late)


def test_a_call_that_waits_for_what_was_begun_comes_when_it_is_done(stream: Stream) -> None:
    told: list[int] = []
    stream.when_done(0, lambda: told.append(0))
    assert told == [0], "nothing was begun"
    first = stream.begin(ops.Truncate, LOG, 0)
    second = stream.begin(ops.Truncate, LOG, 0)
    stream.when_done(first, lambda: told.append(first))
    stream.when_done(second, lambda: told.append(second))
    stream.end(second)
    assert told == [0]
    stream.end(first)
    assert told == [0, first, second]


def test_a_rename_is_not_numbered_while_a_follower_copies(stream: Stream) -> None:
    live, joining = Queue(), Queue(copying=True)
    stream.attach(live)
    stream.attach(joining)
    assert not stream.put_rename("topics/t/offsets.json", "topics/t/offsets.json.prev")
    stream.put(ops.Mkdir, "topics")
    assert stream.end_copy(joining) == 1
    assert joining.operations == [ops.Mkdir(1, "topics"), ops.Copied(1)]
    assert stream.put_rename("topics/t/offsets.json", "topics/t/offsets.json.prev")
    assert live.operations == [ops.Mkdir(1, "topics"), ops.Rename(2, "topics/t/offsets.json", "topics/t/offsets.json.prev")]


def test_a_sync_is_expected_before_a_follower_can_see_it() -> None:
    tickets = Tickets()
    stream = Stream(tickets)
    expected: list[int] = []
    tickets.expect = expected.append  # type: ignore[method-assign]

    class Checks(Queue):
        def put(self, operation: Operation, frame: Frame) -> None:
            assert operation.seq in expected
            super().put(operation, frame)

    queue = Checks()
    stream.attach(queue)
    stream.begin_sync(ops.Sync, LOG)
    stream.begin_sync(ops.SyncDir, "topics/t")
    assert queue.operations == [ops.Sync(1, LOG), ops.SyncDir(2, "topics/t")]


def test_threads_share_one_order(stream: Stream) -> None:
    first, second = Queue(), Queue()
    stream.attach(first)
    stream.attach(second)
    go = threading.Barrier(4)

    def work() -> None:
        go.wait(10)
        for _ in range(200):
            stream.end(stream.begin_write(LOG, 0, b"x"))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert [op.seq for op in first.operations] == list(range(1, 801))
    assert first.operations == second.operations
    assert stream.is_done(800)
