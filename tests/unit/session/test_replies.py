"""Replies in the order of their commands. Contract: protocol.md, "Framing"; ADR 0007."""

import errno
import gc
import random
import weakref
from collections.abc import Iterator

import pytest

from tests.support.fake_clock import FakeClock
from tests.support.sim_event_loop import SimEventLoop
from toymq_py.auth.quotas import FLOOR_BYTES
from toymq_py.errors import BadArgument, DiskFull, QueueFull
from toymq_py.metrics import Metrics
from toymq_py.net.fair_queue import FairQueue, Runnable
from toymq_py.session.replies import REPLIES_PER_WRITE, WRITE_BYTES, Replies
from toymq_py.topic import Appended, Commit, Duplicate


@pytest.fixture
def replies() -> Iterator[Replies]:
    loop, clock = SimEventLoop(random.Random(1)), FakeClock()
    yield Replies(Metrics(), Runnable(FairQueue(clock, loop), lambda slice_end: False), clock)
    loop.close()


def written(replies: Replies) -> bytes:
    return b"".join(replies.take_due(1e9))


def test_a_reply_is_told_when_it_is_written(replies: Replies) -> None:
    told: list[bytes] = []
    before = replies.hold()
    held = replies.hold()
    replies.when_told(told.append)
    replies.fill(held, lambda: b"ERR EXISTS x\n")
    assert (written(replies), told) == (b"", []), "it waits for the one before"
    replies.fill(before, lambda: b"OK 0\n")
    assert written(replies) == b"OK 0\nERR EXISTS x\n"
    assert told == [b"ERR EXISTS x\n"]


def test_replies_hold_up_others_that_wait_behind_one_of_them_at_the_head(replies: Replies) -> None:
    ours = [replies.hold(), replies.hold()]
    assert not replies.holds_up(ours), "they wait for each other"
    other = replies.hold()
    assert replies.holds_up(ours)
    assert not replies.holds_up([other]), "it waits itself"
    replies.add(b"OK 1\n")
    assert replies.holds_up([*ours, other])
    assert not replies.holds_up([])


def test_a_reply_that_waits_holds_those_behind_it(replies: Replies) -> None:
    replies.add(b"1\n")
    held = replies.hold()
    replies.add(b"3\n")
    assert written(replies) == b"1\n"
    assert not replies.due
    replies.fill(held, lambda: b"2\n")
    assert replies.due
    assert written(replies) == b"2\n3\n"
    assert (replies.held_bytes, bool(replies), replies.due) == (0, False, False)


@pytest.mark.parametrize(
    ("error", "expected"), [(None, b"OK 7\nOK 8\nDUP 7\n"), (DiskFull("full"), b"ERR DISK_FULL full\n" * 3)]
)
def test_publishes_are_answered_by_their_commit(replies: Replies, error: DiskFull | None, expected: bytes) -> None:
    commit = Commit()
    replies.add_appended(Appended(commit, 7, 2, 100))
    replies.add_duplicate(Duplicate(commit, 7))
    assert written(replies) == b""
    held_bytes = replies.held_bytes
    assert held_bytes > 100, "with the payload"
    commit.resolve(error)
    assert written(replies) == expected
    assert replies.held_bytes == 0


def test_a_write_has_no_more_than_there_is_room_for(replies: Replies) -> None:
    for _ in range(8):
        replies.add(bytes(30_000))
    replies.room = lambda wanted_bytes: FLOOR_BYTES
    assert len(written(replies)) == 90_000
    assert replies.due


def test_a_reply_that_is_refused_leaves_nothing_behind(replies: Replies) -> None:
    """Found: the messages of a refused reply, a megabyte, stayed until a full collection: 570 MB with --memory-max 160MiB."""
    found: list[weakref.ref[set[int]]] = []

    def make() -> bytes:
        messages = {1}
        found.append(weakref.ref(messages))
        raise QueueFull("no room")

    gc.disable()
    try:
        replies.in_turn(make)
        assert written(replies) == b"ERR QUEUE_FULL no room\n"
        assert found[0]() is None
    finally:
        gc.enable()


def test_a_reply_that_is_counted_is_refused_without_room(replies: Replies) -> None:
    """The reply is a DESCRIBE of a topic with thousands of consumers."""
    grown: list[int] = []

    def grow(size: int) -> None:
        grown.append(size)
        if len(grown) > 1:
            raise QueueFull("no room")

    replies.grow = grow
    for _ in range(2):
        replies.counted(lambda: b"x" * 100_000 + b"\n")
    assert written(replies) == b"x" * 100_000 + b"\nERR QUEUE_FULL no room\n"
    assert (grown, replies.held_bytes) == ([100_001] * 2, 0)


def test_a_push_goes_before_the_replies(replies: Replies) -> None:
    replies.hold()
    replies.push(b"CLOSED\n")
    assert written(replies) == b"CLOSED\n"


def test_a_write_is_bounded_in_bytes_and_in_replies(replies: Replies) -> None:
    for _ in range(REPLIES_PER_WRITE + 1):
        replies.add(b"OK 0\n")
    assert len(replies.take_due(1e9)) == REPLIES_PER_WRITE
    assert replies.due
    assert len(replies.take_due(1e9)) == 1
    for _ in range(3):
        replies.add(b"x" * WRITE_BYTES)
    assert [len(replies.take_due(1e9)) for _ in range(3)] == [1, 1, 1]


@pytest.mark.provokes_bugs
@pytest.mark.parametrize(
    ("error", "code"),
    [(BadArgument("x"), b"BAD_ARGUMENT"), (OSError(errno.EIO, "x"), b"STORAGE_FAILED"), (KeyError(1), b"INTERNAL")]
)
def test_a_reply_that_cannot_be_made_is_an_error(replies: Replies, error: Exception, code: bytes) -> None:
    def fails() -> bytes:
        raise error

    replies.in_turn(fails)
    replies.add(b"next\n")
    first, second = written(replies).splitlines()
    assert first.split()[:2] == [b"ERR", code]
    assert second == b"next"


def test_a_large_reply_takes_several_turns(replies: Replies) -> None:
    parts = iter([None, None, b"done\n"])
    replies.in_turn(lambda: next(parts))
    for _ in range(2):
        assert written(replies) == b""
        assert replies.unfinished
    assert written(replies) == b"done\n"
    assert not replies.unfinished
