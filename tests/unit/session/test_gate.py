"""How many commands of one connection may be under way, and which ones wait."""

import pytest

from tests.support.sim_served import SimServed
from toymq_py.session.gate import CHANGES_MAX, PULLS_MAX, Gate
from toymq_py.session.replies import PendingReply


def test_a_gate_is_closed_while_as_much_as_allowed_has_begun() -> None:
    gate = Gate()
    for begin, most in ((gate.change, CHANGES_MAX), (gate.pull, PULLS_MAX)):
        for _ in range(most - 1):
            begin(1)
        assert not gate.closed
        begin(1)
        assert gate.closed
        begin(-1)
        assert not gate.closed
        for _ in range(most - 1):
            begin(-1)


def test_a_gate_that_waits_opens_when_it_is_called_back_once_for_each() -> None:
    gate, calls, opened = Gate(), [], []
    gate.wait(calls.append, lambda: opened.append(1))
    gate.wait(calls.append, lambda: opened.append(2))
    calls[0]()
    assert (gate.closed, opened) == (True, [1])
    calls[1]()
    assert (gate.closed, opened) == (False, [1, 2])


def test_changes_of_one_connection_are_begun_a_few_at_a_time_and_answered_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: a hundred thousand PURGEs in one packet were all begun, and their work outlived the client."""
    with SimServed() as served:
        begun = []
        create = served.broker.create
        monkeypatch.setattr(served.broker, "create", lambda name, *rest: (begun.append(name), create(name, *rest)))
        offload = served.threads.offload
        held: list[object] = []
        monkeypatch.setattr(served.threads, "offload", lambda job, done: held.append((job, done)))
        client = served.client(b"".join(b"CREATE t.%d\n" % n for n in range(100)) + b"PING\n")
        served.advance(0.1)
        assert begun == [f"t.{n}" for n in range(CHANGES_MAX)]
        monkeypatch.setattr(served.threads, "offload", offload)
        for job, done in held:  # type: ignore[misc]
            offload(job, done)
        served.advance(1)
        assert begun == [f"t.{n}" for n in range(100)]
        assert client.lines() == [*[b"OK 0"] * 100, b"PONG"]


def test_pulls_beyond_the_bound_wait_for_the_first_and_so_does_what_is_behind_them() -> None:
    with SimServed() as served:
        client = served.client(b"PULL t c 1 wait=5000\n" * (PULLS_MAX + 7) + b"PUB other - 1\nx\n")
        served.advance(0.5)
        assert served.broker.topic("t").channels["c"].takers == PULLS_MAX
        assert "other" not in served.broker.topics, "what is behind the bound is not executed yet"
        served.client(b"PUB t - 1\nx\n" * PULLS_MAX)
        served.advance(0.5)
        assert "other" in served.broker.topics
        served.client(b"PUB t - 1\nx\n" * 7)
        served.advance(0.5)
        assert [line[:5] for line in client.lines() if line.startswith(b"OK")] == [b"OK 1"] * (PULLS_MAX + 7) + [b"OK 0"]


def test_a_client_that_goes_leaves_nothing_begun_behind() -> None:
    with SimServed() as served:
        client = served.client(b"PULL t c 1 wait=600000\n" * 1000)
        served.advance(0.5)
        client.close()
        served.advance(0.5)
        assert served.broker.topic("t").channels["c"].takers == 0


def test_acks_that_wait_for_the_disk_share_a_flush_however_many_they_are() -> None:
    with SimServed() as served:
        served.client(b"PUB t - 1\nx\n" * 100)
        served.advance(0.1)
        client = served.client(b"PULL t c 100\n")
        served.advance(0.1)
        before = len(client.received)
        flushes = []
        flush = served.broker._flusher._run
        served.broker._flusher._run = lambda: (flushes.append(1), flush())  # type: ignore[func-returns-value, method-assign]
        client.send(b"".join(b"ACK t c %d sync=1\n" % n for n in range(100)))
        served.advance(0.5)
        assert client.received[before:] == b"OK 1\n" * 100
        assert len(flushes) <= 4


def test_it_waits_for_a_reply_until_that_is_written() -> None:
    gate, held, opened = Gate(), PendingReply(), list[bool]()
    gate.wait_for(held, lambda: opened.append(gate.closed))
    assert (gate.closed, opened) == (True, [])
    assert held.released is not None
    held.released(0)
    assert (gate.closed, opened) == (False, [False])
