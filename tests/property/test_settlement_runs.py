"""A run of ACK, NACK or TOUCH lines is its lines, one after the other: the same answers, the same state."""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.session_rig import SessionRig
from tests.support.shares import examples
from toymq_py.protocol import ServerConnection

MESSAGES = 13
OURS, THEIRS = 7, 8
"""Numbers of the leases of two sessions."""

heads = st.sampled_from([b"ACK t c ", b"NACK t c ", b"TOUCH t c ", b"NACK t.dlq c ", b"TOUCH t absent ", b"NACK u c "])
tails = st.lists(
    st.sampled_from([b"lease=7", b"lease=8", b"delay=0", b"delay=5000", b"dead=1", b"uncounted=1", b"visibility=90000",
                     b"reason=x", b"sync=1", b"oops"]), max_size=2, unique=True,
).map(lambda options: b"".join(b" " + option for option in options))  # fmt: skip
msg_ids = st.integers(0, MESSAGES)
ids_of_a_run = st.one_of(
    st.lists(msg_ids, min_size=1, max_size=8),
    st.lists(msg_ids, min_size=1, max_size=8, unique=True).map(sorted),
    st.tuples(msg_ids, msg_ids).map(lambda edges: list(range(min(edges), max(edges) + 1))),
    msg_ids.map(lambda first: list(range(MESSAGES, first - 1, -1))),
)
runs = st.builds(lambda head, ids, tail: [head + b"%d%b\n" % (n, tail) for n in ids], heads, ids_of_a_run, tails)
said = st.lists(runs, min_size=1, max_size=6).map(lambda found: [line for lines in found for line in lines])


def made(taken: list[int], max_attempts: int) -> SessionRig:
    """Make consumer c of topic t, shared by two sessions that took ``taken`` messages. If the first one took any, it nacked
    message 0 and got it again."""
    session = SessionRig()
    rig = session.rig
    rig.broker.create("t", {"max_attempts": str(max_attempts)}, lambda error: None)
    rig.loop.advance(0)
    rig.subscribe("t.dlq")
    for number, count in zip((OURS, THEIRS), taken, strict=True):
        subscription = rig.subscribe("t", mode="shared")
        subscription.number = number
        if number == OURS:
            rig.publish("t", *[b"x"] * MESSAGES)
        if count:
            subscription.take_some(count, 1 << 20)
    if taken[0]:
        rig.nack("t", 0, 0)
        rig.broker.topic("t").channels["c"].take(next(iter(rig.broker.topic("t").channels["c"].sessions)), 1, 1 << 20)
    return session


def hear(session: SessionRig, pieces: Iterable[bytes]) -> bytes:
    """Send the pieces to the session; return its answers."""
    connection = ServerConnection(100)
    answers = b""
    for piece in pieces:
        connection.receive_data(piece)
        while found := connection.next_commands(512):
            for command in found:
                session.apply(command)
        answers += session.write()
    return answers


def state_of(session: SessionRig) -> dict[str, Any]:
    """Return the state of each message and the counters."""
    broker = session.rig.broker
    channel = broker.topic("t").channels["c"]
    places = {
        msg_id: (run.state, run.owner and run.owner.number, run.deadline, run.attempt, run.spared, run.reason)
        for run in channel.consumer._runs
        for msg_id in range(run.first, run.last + 1)
    }
    failures = channel.consumer.failures
    letters = session.rig.records("t.dlq")
    return {
        "places": places,
        "acked": channel.consumer.snapshot().to_json(),
        "failed": {n: None if failures is None else failures.find(n) for n in range(MESSAGES)},
        "letters": sorted(sorted(headers.items()) for _, _, _, headers in letters),
        "counted": (broker.metrics.ack_total, broker.metrics.nack_total, broker.metrics.errors),
        "ready": [subscription.lessee.inflight for subscription in channel.sessions],
        "due": channel.consumer.next_deadline(),
    }


@given(
    lines=said, cuts=st.lists(st.integers(0, 400), max_size=3), taken=st.tuples(st.integers(0, 8), st.integers(0, 8)).map(list),
    max_attempts=st.sampled_from([0, 2]),
)  # fmt: skip
@example(lines=[b"NACK t c %d delay=0 lease=7\n" % n for n in (3, 1, 1, 2, 9)], cuts=[], taken=[5, 5], max_attempts=0)
@example(lines=[b"NACK t c %d dead=1\n" % n for n in range(9)], cuts=[70], taken=[5, 2], max_attempts=2)
@example(
    lines=[b"NACK t c 1 delay=5000 lease=7\n", *(b"NACK t c %d dead=1 reason=x\n" % n for n in range(9))],
    cuts=[], taken=[5, 2], max_attempts=0,
)  # fmt: skip
@settings(max_examples=examples(300), deadline=None)
def test_a_run_does_what_its_lines_do_one_after_the_other(
    lines: list[bytes], cuts: list[int], taken: list[int], max_attempts: int
) -> None:
    data = b"".join(lines)
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    with made(taken, max_attempts) as at_once, made(taken, max_attempts) as one_by_one:
        assert state_of(at_once) == state_of(one_by_one)
        answers = hear(at_once, [data[begin:end] for begin, end in pairwise(edges)])
        assert answers == hear(one_by_one, lines)
        assert answers.count(b"\n") == len(lines)
        for session in (at_once, one_by_one):
            session.rig.advance(0)
        assert state_of(at_once) == state_of(one_by_one)
