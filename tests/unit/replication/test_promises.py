"""Every answer that promises stable storage promises it for each required follower's disk, too. Contract: replication.md, 4."""

import errno
import random
from collections.abc import Callable

import pytest

from tests.support.fake_clock import FakeClock
from tests.support.replica_rig import ROOT, Pair, new_disk
from toymq_py.broker import Broker
from toymq_py.config.options import BrokerOptions, CommitMode
from toymq_py.config.webhooks import Webhook
from toymq_py.storage.commit.batch import CommitState
from toymq_py.topic import Published

KEY, SEQUENCED = b"key", b"p"


class Rig:
    """A leader with two messages and a follower in sync, to which the network is cut."""

    def __init__(self, commit: CommitMode = "thread", **options: int) -> None:
        rng, clock = random.Random(1), FakeClock()
        self.disk = new_disk(rng)
        self.pair = Pair(self.disk, clock, rng)
        options = {"min_free_bytes": 0, "segment_bytes": 4096} | options
        chosen = BrokerOptions(data_dir=ROOT, commit=commit, **options)  # type: ignore[arg-type]
        self.broker = Broker(chosen, fs=self.pair.fs, scheduler=self.pair.loop, clock=clock)
        self.broker.open(1)
        self.topic = self.broker.topic_or_new("t")
        self.pair.join()
        self.publish(KEY)
        self.pair.loop.drain()
        self.publish()  # from the next one on a commit only appends
        self.subscription = self.topic.subscribe(
            "c", None, window=10, visibility_s=30, wake=lambda _: True, ended=lambda *_: None
        )[0]
        self.topic.flush_offsets(lambda error: None)
        self.pair.drain()
        assert self.pair.in_sync
        self.disk.meanwhile = None
        self.pair.cut = True
        self.answers: list[object] = []

    def publish(self, key: bytes = b"") -> Published:
        return self.topic.publisher.publish([key], [b"payload"])[0]

    def answer(self, *values: object) -> None:
        self.answers.append(values[-1])

    def run(self) -> None:
        self.pair.loop.advance(1)
        self.broker.tick(self.pair.loop.clock.monotonic())
        self.pair.loop.drain()

    def reconnect(self) -> None:
        self.pair.cut = False
        self.run()


@pytest.mark.parametrize("commit", ["thread", "inline"])
def test_a_publish_is_answered_when_the_follower_has_it(commit: CommitMode) -> None:
    rig = Rig(commit)
    outcomes = [rig.publish()]
    rig.run()
    outcomes += [rig.publish(), rig.publish()]  # behind it
    rig.run()
    assert [outcome.commit.state for outcome in outcomes] == [CommitState.PENDING] * 3
    assert rig.topic.log.committed_id == 2, "nothing is delivered that is not on every disk"
    rig.reconnect()
    assert [outcome.commit.state for outcome in outcomes] == [CommitState.DONE] * 3
    assert rig.topic.log.committed_id == 5


def test_a_commit_on_the_loop_is_on_the_loop() -> None:
    """Otherwise the case above would not test a commit on the loop."""
    rig = Rig("inline")
    held: list[float] = []
    rig.broker.commit_place._held = held.append
    rig.publish()
    rig.run()
    assert held == []
    rig.reconnect()
    assert len(held) == 1


def test_a_duplicate_of_what_only_the_leader_has_is_not_answered() -> None:
    rig = Rig()
    first = rig.publish(b"new")
    rig.run()
    again = rig.publish(b"new")
    assert again.duplicate
    assert again.commit.state is CommitState.PENDING
    rig.reconnect()
    assert first.commit.state is again.commit.state is CommitState.DONE


def test_a_full_disk_is_told_when_the_follower_has_cut_too() -> None:
    """The error means "certainly not stored", so a follower that takes over must not have the batch."""
    rig = Rig()
    rig.disk.fail("sync", 1, errno.ENOSPC)
    outcome = rig.publish()
    rig.run()
    assert outcome.commit.state is CommitState.PENDING
    rig.reconnect()
    assert outcome.commit.error is not None
    assert outcome.commit.error.code == "DISK_FULL"
    assert rig.pair.follower is not None
    log = f"{ROOT}/topics/t/{0:020d}.log"
    assert rig.pair.follower.disk.read_file(log) == rig.disk.read_file(log)


def test_a_failed_disk_is_told_although_the_follower_has_the_message() -> None:
    rig = Rig()
    rig.disk.fail("sync", 1, errno.EIO)
    outcome = rig.publish()
    rig.run()
    rig.reconnect()
    assert outcome.commit.error is not None
    assert outcome.commit.error.code == "STORAGE_FAILED"


PROMISES: dict[str, Callable[[Rig], object]] = {
    "ACK sync=1, SEEK, FORGET": lambda rig: rig.topic.flush_offsets(rig.answer),
    "CREATE": lambda rig: rig.broker.create("new", {}, rig.answer),
    "CREATE with settings": lambda rig: rig.broker.create("new", {"ttl": "5000"}, rig.answer),
    "CONFIG": lambda rig: rig.broker.configure("t", {"ttl": "5000"}, rig.answer),
    "PURGE": lambda rig: rig.topic.purge(rig.answer),
    "DELETE": lambda rig: rig.broker.delete("t", rig.answer),
    "webhooks": lambda rig: rig.broker.directory.store_webhooks(
        {"w": Webhook(topic="t", url="http://h/")}, rig.answer
    ),
}  # fmt: skip


@pytest.mark.parametrize("promise", PROMISES.values(), ids=PROMISES.keys())
def test_a_change_is_answered_when_the_follower_has_it(promise: Callable[[Rig], object]) -> None:
    rig = Rig()
    promise(rig)
    for _ in range(3):
        rig.run()
    assert rig.answers == []
    rig.reconnect()
    assert rig.answers == [None]


def test_a_change_is_answered_when_its_follower_is_not_required_any_more() -> None:
    rig = Rig()
    outcome = rig.publish()
    rig.topic.flush_offsets(rig.answer)
    rig.run()
    assert outcome.commit.state is CommitState.PENDING
    rig.pair.tickets.require([])
    rig.run()
    assert outcome.commit.state is CommitState.DONE
    assert rig.answers == [None]


def test_a_node_that_lost_its_place_answers_nothing() -> None:
    rig = Rig()
    outcome = rig.publish()
    rig.topic.flush_offsets(rig.answer)
    rig.run()
    rig.pair.tickets.stop()
    rig.reconnect()
    assert outcome.commit.state is CommitState.PENDING
    assert rig.answers == []


def test_a_dead_letter_leaves_its_topic_when_the_follower_has_it() -> None:
    rig = Rig()
    rig.broker.configure("t", {"max_attempts": "1"}, rig.answer)
    rig.reconnect()
    assert rig.subscription.take(1 << 20) is not None
    rig.pair.cut = True
    rig.topic.nack("c", [(0, 0)], 0)
    rig.run()
    acked = rig.topic.consumers["c"].has_acked_all
    assert rig.broker.topics["t.dlq"].log.committed_id == 0
    assert not acked(0, 0)
    rig.reconnect()
    assert rig.broker.topics["t.dlq"].log.committed_id == 1
    assert acked(0, 0)


def test_a_segment_is_removed_when_the_follower_has_the_offsets_that_justify_it() -> None:
    rig = Rig(retain_acked_for_ms=0)
    delivery = rig.subscription.take(1 << 20)
    assert delivery is not None
    rig.topic.ack("c", [(0, 1)])
    for _ in range(3):
        rig.topic.publisher.publish([b""], [bytes(3000)])
        rig.run()
    first = f"{ROOT}/topics/t/{0:020d}.log"
    assert rig.disk.exists(first)
    rig.reconnect()
    for _ in range(5):
        rig.run()
    assert not rig.disk.exists(first)
