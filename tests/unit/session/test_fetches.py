"""FETCH: records by id, and the wait for the next one. Contract: protocol.md, "FETCH"."""

from collections.abc import Iterator

import pytest

from tests.support.session_rig import SessionRig
from toymq_py.protocol import Fetch, Ping


@pytest.fixture
def session() -> Iterator[SessionRig]:
    with SessionRig() as session:
        yield session


def head(written: bytes) -> list[bytes]:
    return written.partition(b"\n")[0].split()[:4]


def test_records_are_read_when_the_reply_is_written(session: SessionRig) -> None:
    session.rig.publish("t", b"a", b"b")
    session.apply(Fetch("t", 0, 9))
    session.rig.publish("t", b"c")
    assert head(session.write()) == [b"BATCH", b"t", b"3", b"3"]


def test_a_fetch_at_the_end_waits_for_a_commit(session: SessionRig) -> None:
    session.rig.publish("t", b"a")
    session.apply(Fetch("t", 1, 9, wait_ms=1000))
    session.apply(Ping())
    assert session.write() == b"", "replies keep their order"
    session.rig.publish("t", b"b")
    written = session.write()
    assert head(written) == [b"BATCH", b"t", b"1", b"2"]
    assert written.endswith(b"\nPONG\n")


def test_the_end_of_the_stream_answers_a_wait_empty(session: SessionRig) -> None:
    session.rig.publish("t", b"a")
    session.apply(Fetch("t", 1, 9, wait_ms=1000))
    session.handler.end_waits()
    assert head(session.write()) == [b"BATCH", b"t", b"0", b"1"]
    assert all(timer.cancelled() for timer in session.loop._scheduled)


def test_a_topic_that_was_deleted_meanwhile_is_not_read(session: SessionRig) -> None:
    session.rig.publish("t", b"a")
    session.apply(Fetch("t", 0, 9))
    session.rig.broker.delete("t", lambda count, error: None)
    session.rig.loop.drain()
    assert session.write() == b"ERR NO_SUCH_TOPIC t was deleted\n"


def test_a_large_record_waits_while_the_broker_holds_too_much() -> None:
    """Found: two hundred connections that did not read held two MiB each, and the kernel killed the broker."""
    with SessionRig(max_held_bytes=1 << 20) as session:
        session.rig.publish("t", b"small", *[b"x" * 500_000] * 4)
        session.apply(Fetch("t", 0, 9, max_bytes=1 << 21))
        assert session.write() == session.write() == b""
        assert 1_000_000 < session.seat.held_bytes < 1 << 20, "each piece as soon as it is read"
        session.write()
        assert head(session.write()) == [b"BATCH", b"t", b"4", b"4"], "and the reply ends there"
        for first_id, wanted in ((0, [b"BATCH", b"t", b"1", b"1"]), (1, [b"ERR", b"QUEUE_FULL", b"1048576", b"bytes"])):
            session.apply(Fetch("t", first_id, 9))
            assert head(session.write()) == wanted
        session.seat.settle(0)
        session.apply(Fetch("t", 1, 1))
        assert head(session.write()) == [b"BATCH", b"t", b"1", b"2"]


def pieces_of(session: SessionRig) -> tuple[int, bytes]:
    """Return how many turns the reply took, and the reply."""
    turns = 1
    while not (written := session.write()):
        turns += 1
    return turns, written


@pytest.mark.parametrize("size", [2000, 90_000, 300_000])
def test_a_large_batch_is_read_in_pieces(session: SessionRig, size: int) -> None:
    """Found: each connection that asked for such a batch blocked the loop for ten milliseconds."""
    count = 3_000_000 // size
    session.rig.publish("t", *[b"x" * size] * count)
    session.apply(Fetch("t", 0, count, max_bytes=1 << 21))
    turns, written = pieces_of(session)
    _, _, number, next_id, length = written.partition(b"\n")[0].split()
    assert turns >= 6
    assert int(number) == int(next_id) == (1 << 21) // (int(length) // int(number)), "as many as there is room for"
    assert session.replies.held_bytes == 0
    session.apply(Fetch("t", 0, 1, max_bytes=1 << 21))
    assert head(session.write()) == [b"BATCH", b"t", b"1", b"1"], "a small one takes one turn"


def test_a_batch_ends_where_retention_has_removed_the_rest(session: SessionRig) -> None:
    session.rig.publish("t", *[b"x" * 300_000] * 4)
    session.apply(Fetch("t", 0, 9, max_bytes=1 << 21))
    assert session.write() == b""
    session.rig.broker.topic("t").log.forget_below(3)
    assert head(session.write()) == [b"BATCH", b"t", b"1", b"1"]


def test_of_a_topic_that_is_deleted_between_two_pieces_nothing_is_said(session: SessionRig) -> None:
    session.rig.publish("t", *[b"x" * 300_000] * 4)
    session.apply(Fetch("t", 0, 9, max_bytes=1 << 21))
    assert session.write() == b""
    session.rig.broker.delete("t", lambda count, error: None)
    session.rig.loop.drain()
    assert session.write() == b"ERR NO_SUCH_TOPIC t was deleted\n"
    assert session.replies.held_bytes == 0
