"""PURGE. Contract: storage.md, "Retention"; protocol.md, "PURGE"."""

import errno
import random
from types import SimpleNamespace

import pytest

from tests.support.broker_rig import BrokerRig
from toymq_py.errors import NoSuchTopic, StorageFailed
from toymq_py.storage.commit.batch import CommitState
from toymq_py.storage.segment import segment_name
from toymq_py.topic import backlog


def filled(**options: object) -> BrokerRig:
    """Return a broker with ids 0 to 5 in six segments; "c" has acked 0 and 4 and holds 1 to 3, "idle" got nothing yet."""
    rig = BrokerRig(**options)
    for n in range(6):
        rig.publish("t", b"%d" % n * 3000)
    rig.subscribe("t", "idle").close()
    subscription = rig.subscribe("t")
    assert len(rig.take(subscription)) == 6
    rig.ack("t", 0, 0)
    rig.ack("t", 4, 4)
    rig.broker.topic("t").nack("c", [(5, 5)], 0)
    return rig


def logs(rig: BrokerRig) -> list[str]:
    return [name for name in rig.files("t") if name.endswith((".log", ".idx"))]


def test_purge_drops_everything_and_ids_go_on() -> None:
    rig = filled()
    assert rig.purge("t") == 6
    assert logs(rig) == [segment_name(6)]
    topic = rig.broker.topic("t")
    assert (topic.log.first_id, topic.log.committed_id, topic.log.messages(), topic.state) == (6, 6, 0, "ok")
    assert rig.ended == [], "sessions stay attached"
    assert rig.ack("t", 0, 5) == 0, "what was inflight is gone"
    assert rig.publish("t", b"new")[0].first_id == 6
    for name in ("c", "idle"):
        consumer = rig.numbers("t")["consumers"][name]
        assert (consumer["backlog"], consumer["ready"], consumer["inflight"]) == (1, 1, 0)
    rig.reopen(power_cut=True)
    assert rig.broker.topic("t").offsets.problem is None
    assert rig.take(rig.subscribe("t")) == [(6, 1)]
    assert rig.take(rig.subscribe("t", "later")) == [(6, 1)]


def test_what_comes_after_the_answer_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: when counting a full backlog took long (the process was not running), the next count came 20 times that later, so
    a publish after the answer of PURGE was QUEUE_FULL."""
    rig = BrokerRig()
    assert rig.change("create", "t", backlog_max_messages="2") == "OK"
    rig.publish("t", b"a", b"b")
    topic = rig.broker.topic("t")
    assert topic.publisher.limit is not None
    monkeypatch.setattr(backlog, "CHEAP_RECOUNT_S", -1.0)
    monkeypatch.setattr(backlog, "RECOUNT_SHARE_MAX", 1e-12)
    times = iter(range(10**6))
    monkeypatch.setattr(topic.publisher.limit, "_clock", SimpleNamespace(monotonic=lambda: float(next(times))))
    (refused,) = rig.publish("t", b"c")
    assert refused.error is not None
    (refused,) = rig.publish("t", b"d")
    assert refused.error is not None
    assert rig.purge("t") == 2
    (stored,) = rig.publish("t", b"e")
    assert stored.error is None


def test_an_attached_session_goes_on_with_what_comes() -> None:
    rig = BrokerRig()
    rig.publish("t", b"a", b"b", b"c")
    subscription = rig.subscribe("t", window=2)
    assert len(rig.take(subscription)) == 2
    rig.woken.clear()
    assert rig.purge("t") == 3
    assert subscription in rig.woken, "its window is free"
    rig.publish("t", b"d")
    assert rig.take(subscription) == [(3, 1)]


def test_purge_of_nothing_writes_nothing() -> None:
    rig = BrokerRig()
    rig.broker.topic_or_new("t")
    assert rig.purge("t") == 0
    assert rig.files("t") == []
    rig.publish("t", b"a")
    assert rig.purge("t") == 1
    assert rig.purge("t") == 0, "twice"
    with pytest.raises(NoSuchTopic):
        rig.broker.topic("u")


def test_publishes_around_a_purge_keep_their_side() -> None:
    rig = BrokerRig()
    rig.publish("t", b"committed")
    topic = rig.broker.topic("t")
    before = topic.publisher.publish([b"k"], [b"before"])[0]
    answers: list[tuple[int, object]] = []
    topic.purge(lambda count, error: answers.append((count, error)))
    behind = topic.publisher.publish([b""], [b"behind"])[0]
    topic.purge(lambda count, error: answers.append((count, error)))
    rig.loop.advance(0)
    assert before.commit.state is behind.commit.state is CommitState.DONE
    assert answers == [(2, None), (1, None)]
    assert topic.log.first_id == 3
    outcome = rig.publish("t", b"again", key=b"k")[0]
    assert (outcome.duplicate, outcome.first_id) == (False, 3), "a key of what was purged is free"


def test_two_purges_at_once() -> None:
    rig = filled()
    topic = rig.broker.topic("t")
    answers: list[tuple[int, object]] = []
    topic.purge(lambda count, error: answers.append((count, error)))
    topic.purge(lambda count, error: answers.append((count, error)))
    rig.loop.advance(0)
    assert answers == [(6, None), (0, None)]


def test_a_purge_is_refused_where_nothing_can_be_written() -> None:
    rig = filled()
    rig.disk.fail("sync", 1, errno.EIO, path=".log")
    rig.publish("t", b"poison")
    with pytest.raises(StorageFailed):
        rig.broker.topic("t").purge(lambda count, error: None)


def test_delete_in_the_middle_of_a_purge() -> None:
    rig = filled()
    answers: list[object] = []
    rig.broker.topic("t").purge(lambda count, error: answers.append(error))
    assert rig.delete("t") == 6
    assert isinstance(answers[0], NoSuchTopic)
    assert rig.publish("t", b"anew")[0].first_id == 0
    assert rig.numbers("t")["consumers"] == {}


def test_a_full_disk_is_purged_nevertheless() -> None:
    """The offsets that record the purge get space only when something is removed."""
    rig = filled()
    rig.disk.capacity_bytes = rig.disk.used_bytes
    assert rig.purge("t") == 6
    assert logs(rig) == [segment_name(6)]
    rig.reopen(power_cut=True)
    assert (rig.broker.topic("t").log.first_id, rig.broker.topic("t").state) == (6, "ok")


@pytest.mark.parametrize("op", ["open", "pwrite", "sync", "rename", "sync_dir", "unlink", "truncate"])
def test_a_crash_at_any_step_leaves_all_or_nothing(op: str) -> None:
    happened = set()
    for nth in range(1, 30):
        rig = filled()
        fault = rig.disk.fail(op, nth, errno.EIO, sticky=True)  # from here on the disk is dead
        answers: list[object] = []
        rig.broker.topic("t").purge(lambda count, error, into=answers: into.append(error))
        rig.loop.advance(0)
        for seed in range(4):
            after = BrokerRig(disk=rig.disk.peek_crash(random.Random(seed)))
            topic = after.broker.topic("t")
            assert topic.state == "ok"
            purged = topic.log.first_id == 6
            happened.add(purged)
            assert purged or answers != [None], "answered, and undone by the crash"
            assert purged or topic.log.messages() == 6, "half of it is gone"
            assert not purged or logs(after) == [segment_name(6)]
            taken = [msg_id for msg_id, _ in after.take(after.subscribe("t"))]
            assert taken == ([] if purged else [1, 2, 3, 5])
            assert after.publish("t", b"x")[0].first_id == 6, "ids go on"
        if not fault.fired:
            break
    else:
        pytest.fail("more steps than were looked at")
    assert happened == {True, False} or op == "unlink", "unlinking comes when the purge has happened"
