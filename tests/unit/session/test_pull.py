"""A PULL among a session's replies: when it leases, and which messages go back when its write fails."""

import gc
from collections.abc import Iterator

import pytest

from tests.support.session_rig import SessionRig
from tests.support.sim_served import SimServed
from toymq_py.auth.quotas import FLOOR_BYTES
from toymq_py.protocol import Ping, Pull
from toymq_py.session.replies import WAIT_COST_BYTES
from toymq_py.subscription.pattern_poll import PART_COST_BYTES


def pull(session: SessionRig, *, max_count: int = 9, wait_ms: int = 0) -> None:
    session.apply(Pull("t", "c", max_count, wait_ms))


def inflight(session: SessionRig) -> int:
    return session.rig.broker.topic("t").consumers["c"].inflight


@pytest.fixture
def session() -> Iterator[SessionRig]:
    with SessionRig() as session:
        yield session


def test_the_lease_is_taken_when_the_reply_is_written(session: SessionRig) -> None:
    session.rig.publish("t", b"x", b"y")
    pull(session)
    assert inflight(session) == 0, "it is due, and the socket has not asked for it"
    written = session.write()
    assert written.endswith(b"y\nOK 2\n")
    assert written.startswith(b"MSG t 0 1 ")
    assert inflight(session) == 2


@pytest.mark.parametrize(("whole", "part"), [(0, 0), (0, 9), (1, 0), (1, 9), (3, 0)])
def test_what_the_socket_did_not_take_goes_back_uncounted(session: SessionRig, whole: int, part: int) -> None:
    session.rig.publish("t", b"a" * 50, b"b" * 50, b"c" * 50)
    session.apply(Ping())
    pull(session)
    written = session.write()
    assert written.startswith(b"PONG\nMSG t 0 1 ")
    begins = [written.index(b"MSG t %d" % n) for n in range(3)] + [written.index(b"OK 3")]
    session.deliveries.give_back(begins[whole] + part)
    session.handler.close()
    session.deliveries.close()
    assert inflight(session) == whole, "what was taken whole stays leased, whatever becomes of the session"
    assert [session.rig.broker.topic("t").consumers["c"].has_delivered(n, n) for n in range(3)] == [n < whole for n in range(3)]
    session.rig.advance(31)
    poll = session.rig.poll("t")
    taken = [(n, d.attempt) for _ in range(3) for d in poll.take(9, 1 << 20) for n in d.records.ids[d.start : d.stop]]
    assert taken == [(n, 2 if n < min(whole, 1) else 1) for n in range(3)]


def test_one_that_waits_is_answered_by_what_comes_and_never_twice(session: SessionRig) -> None:
    pull(session, wait_ms=1000)
    session.apply(Ping())
    assert session.write() == b""
    assert not session.replies.due, "nothing turns while it waits"
    session.rig.publish("t", b"x")
    assert session.replies.due
    assert session.write().endswith(b"x\nOK 1\nPONG\n")
    session.rig.publish("t", b"y")
    assert session.write() == b""
    assert inflight(session) == 1


def test_a_stalled_socket_leaves_what_it_was_woken_for_to_others(session: SessionRig) -> None:
    other = session.rig.subscribe("t", "c", mode="shared")
    pull(session, wait_ms=1000)
    assert session.write() == b""
    assert other.take(1 << 20) is None
    session.rig.publish("t", b"x")
    assert session.rig.woken == [], "the poll waits longer"
    session.deliveries.stall(True)
    assert session.rig.woken == [other]
    assert session.rig.take(other) == [(0, 1)]
    session.deliveries.stall(False)
    assert session.write() == b"", "it goes on waiting"
    session.handler.end_waits()
    assert session.write() == b"OK 0\n"


def test_one_whose_connection_ends_leaves_nothing_behind(session: SessionRig) -> None:
    pull(session, wait_ms=1000)
    assert session.write() == b""
    session.handler.close()
    (attached,) = session.rig.broker.topic("t").channels.values()
    assert (attached.takers, len(attached.idle)) == (0, 0)
    assert all(timer.cancelled() for timer in session.loop._scheduled)


def test_a_large_message_waits_while_the_token_is_over_its_share(session: SessionRig) -> None:
    """Clients of the token have not read what its other connections got: a small message is delivered, a larger one waits."""
    greedy = session.rig.broker.quotas.enter("127.0.0.1", None)
    session.rig.publish("t", b"small", b"x" * (FLOOR_BYTES + 1))
    greedy.unread(session.rig.broker.options.max_held_bytes + 1)
    pull(session)
    assert session.write().endswith(b"small\nOK 1\n")
    pull(session)
    assert session.write().startswith(b"ERR QUEUE_FULL ")
    assert inflight(session) == 1
    greedy.unread(0)
    pull(session)
    assert session.write().startswith(b"MSG t 1 1 "), "the refusal counted no attempt"


def test_a_pull_leaves_no_cycle_behind() -> None:
    """Found: each PULL left its messages, up to a megabyte, to the garbage collector, which runs seldom."""
    with SimServed() as served:
        client = served.client(b"PUB t - 1\nx\n" * 600 + b"PULL t c 1\n" * 10)
        served.advance(1)
        gc.collect()
        gc.disable()
        try:
            client.send(b"PULL t c 1\n" * 500)
            served.advance(1)
            assert gc.collect() < 500
        finally:
            gc.enable()


def test_wait_is_kept_while_the_disk_writes_that_a_consumer_is_new() -> None:
    """Found by an attack: over a thousand topics the answer came after 8 s, with a wait of 0.1 s."""
    with SimServed() as served:
        served.client(b"".join(b"PUB a.%d - 1\nx\n" % n for n in range(40)))
        served.advance(0.5)
        offload = served.threads.offload
        served.threads.offload = lambda job, done: served.loop.call_later(9, offload, job, done)  # type: ignore[method-assign]
        client = served.client(b"PULL a.* c 1 wait=100\nPING\n")
        served.advance(0.15)
        assert client.lines()[-2:] == [b"OK 1", b"PONG"], "a new consumer begins at the first id in any case"
        other = served.client(b"PULL a.* d 1\n")
        served.advance(0.15)
        assert other.received == b"", "without a wait it is answered when a restart would know the consumer"
        served.advance(20)
        assert other.lines()[-1:] == [b"OK 1"]


def test_pipelined_pulls_of_a_pattern_hold_what_one_does_and_let_it_go_with_their_client() -> None:
    """Found by an attack: 300 KB of lines took 960 MB over 200 topics, and 4 s later they were still there."""
    with SimServed() as served:
        served.client(b"".join(b"PUB a.%d - 1\nx\n" % n for n in range(100)))
        served.advance(0.5)
        client = served.client(b"PULL a.* c 1 wait=600000\n" * 2000)
        served.advance(1)
        places = [channel for topic in served.broker.topics.values() for channel in topic.channels.values()]
        assert [channel.takers for channel in places] == [1] * 100
        client.close()
        served.advance(0.1)
        assert [channel.takers for channel in places] == [0] * 100


def test_what_pulls_of_patterns_hold_counts_for_the_session(session: SessionRig) -> None:
    for n in range(100):
        session.rig.broker.topic_or_new(f"a.{n}")
    before = session.replies.held_bytes
    session.apply(Pull("a.*", "c", 1, 1000))
    session.rig.loop.advance(1)
    first = session.replies.held_bytes
    assert first - before == WAIT_COST_BYTES + 100 * PART_COST_BYTES
    session.apply(Pull("a.*", "c", 1, 1000))
    session.rig.loop.advance(1)
    assert session.replies.held_bytes - first == WAIT_COST_BYTES
    session.handler.end_waits()
    assert session.write() == b"OK 0\nOK 0\n"
    assert session.replies.held_bytes == before
