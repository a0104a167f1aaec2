"""Producer sequences in a topic: duplicates, restarts, sealed segments, retention, bounds. Contract: delivery.md, "Dedupe"."""

import errno
import json
import random

import pytest

from tests.simulation.world import Killed, MortalDisk
from tests.support.broker_rig import DIR, BrokerRig
from toymq_py.dedupe import KeyBudget, ProducerTable
from toymq_py.errors import (
    BadArgument,
    DiskFull,
    PayloadTooLarge,
)
from toymq_py.storage import checked_json
from toymq_py.storage.commit.batch import CommitState
from toymq_py.storage.segment import PRODUCERS_MAX, join_producers, load_sidecar, segment_name
from toymq_py.topic import Published

FIRST = segment_name(0)


def publish(rig: BrokerRig, *sequences: int, producer: bytes = b"p", drain: bool = True, size: int = 10) -> list[Published]:
    topic = rig.broker.topic_or_new("t")
    payloads = [b"%b %d" % (producer, sequence) + bytes(size) for sequence in sequences]
    outcomes = topic.publisher.publish_sequenced([producer] * len(sequences), payloads, None, list(sequences))
    if drain:
        rig.loop.drain()
    return outcomes


def highest(rig: BrokerRig, producer: bytes = b"p") -> tuple[int, int] | None:
    topic = rig.broker.topics["t"]
    return topic.publisher.producers.find(producer, topic.log.first_id)


# -- duplicates


def test_a_run_of_duplicates_is_one_outcome_and_names_the_highest() -> None:
    rig = BrokerRig()
    publish(rig, 1, 5, 9)
    (duplicates, fresh) = publish(rig, 0, 1, 7, 9, 10)
    assert (duplicates.count, duplicates.first_id, duplicates.duplicate) == (4, 2, True)
    assert (fresh.count, fresh.first_id, fresh.duplicate) == (1, 3, False)


def test_one_that_descends_inside_a_run_is_a_duplicate() -> None:
    rig = BrokerRig()
    outcomes = publish(rig, 1, 3, 2, 4)
    assert [(o.count, o.first_id, o.duplicate) for o in outcomes] == [(2, 0, False), (1, 1, True), (1, 2, False)]


def test_a_duplicate_of_what_waits_is_answered_with_its_commit() -> None:
    rig = BrokerRig()
    publish(rig, 1)
    (first,) = publish(rig, 2, drain=False)
    (known, waiting) = publish(rig, 1, 2, drain=False)
    assert (known.first_id, known.commit.state) == (0, CommitState.DONE), "a committed hit waits for nothing"
    assert waiting.commit is first.commit
    assert waiting.commit.state is CommitState.PENDING


def test_a_failed_batch_leaves_the_producer_where_it_was() -> None:
    rig = BrokerRig()
    publish(rig, 1)
    rig.disk.fail("pwrite", 1, errno.ENOSPC, path=".log")
    (refused,) = publish(rig, 2, 3)
    assert isinstance(refused.commit.error, DiskFull)
    assert highest(rig) == (1, 0)
    assert publish(rig, 2)[0].first_id == 1


def test_a_key_is_plain_or_a_producer() -> None:
    rig = BrokerRig()
    rig.publish("t", b"x", key=b"k")
    publish(rig, 1)
    topic = rig.broker.topics["t"]
    outcomes = topic.publisher.publish([b"a", b"p", b"", b"k"], [b"1", b"2", b"3", b"4"])
    assert [type(outcome.error) for outcome in outcomes] == [type(None), BadArgument, type(None), type(None)]
    assert outcomes[-1].duplicate
    (stored, mixed) = topic.publisher.publish_sequenced([b"q", b"k", b"q"], [b""] * 3, None, [1, 1, 2])
    assert stored.error is None
    assert isinstance(mixed.error, BadArgument), "and what stands behind is the session's to say"


def test_one_that_is_larger_than_the_backlog_is_refused_alone() -> None:
    """Found: the publishes behind it were refused with its error, even those of other producers."""
    rig = BrokerRig()
    assert rig.change("create", "t", backlog_max_bytes="1000") == "OK"
    rig.subscribe("t")
    topic = rig.broker.topics["t"]
    outcomes = topic.publisher.publish_sequenced([b"p", b"p", b"q", b"p"], [b"1", bytes(2000), b"2", b"3"], None, [1, 2, 1, 3])
    (stored, refused) = outcomes  # the rest is the session's to say
    assert (stored.count, stored.error) == (1, None)
    assert (refused.count, type(refused.error)) == (1, PayloadTooLarge)


def test_without_deduplication_nothing_is_promised() -> None:
    rig = BrokerRig(dedupe_keys=0)
    (refused,) = publish(rig, 1)
    assert isinstance(refused.error, BadArgument)


def test_switching_deduplication_off_forgets() -> None:
    rig = BrokerRig()
    publish(rig, 5)
    assert rig.change("configure", "t", dedupe_keys="0") == "OK"
    assert rig.change("configure", "t", dedupe_keys="default") == "OK"
    assert not publish(rig, 5)[0].duplicate


# -- what survives


@pytest.mark.parametrize("sidecars", ["as sealed", "none", "damaged"])
@pytest.mark.parametrize("power_cut", [True, False])
def test_it_survives_a_restart_in_sealed_segments(sidecars: str, power_cut: bool) -> None:
    rig = BrokerRig()
    publish(rig, *range(10), producer=b"quiet")
    rig.publish("t", b"x", key=b"plain")
    for n in range(60):
        publish(rig, n, size=150)
    assert len(rig.broker.topics["t"].log.segments) > 2
    known = {name: highest(rig, name) for name in (b"p", b"quiet")}
    for name in rig.files("t"):
        if name.endswith(".idx") and sidecars == "none":
            rig.disk.unlink(f"{DIR}/topics/t/{name}")
        elif name.endswith(".idx") and sidecars == "damaged":
            rig.put(f"topics/t/{name}", b"{}")
    rig.reopen(power_cut=power_cut)
    assert {name: highest(rig, name) for name in known} == known
    assert publish(rig, 9, producer=b"quiet")[0].duplicate
    assert publish(rig, 59)[0].duplicate
    assert rig.publish("t", b"x", key=b"plain")[0].duplicate
    assert isinstance(rig.publish("t", b"x", key=b"p")[0].error, BadArgument)


def test_a_sealed_segment_says_where_its_producers_were() -> None:
    rig = BrokerRig()
    for n in range(60):
        publish(rig, n, size=150)
    rig.loop.drain()
    first, second = rig.broker.topics["t"].log.segments[:2]
    loaded = load_sidecar(rig.disk, first.path, 0, second.base_id)
    assert loaded is not None
    assert loaded.producers == {b"p": (second.base_id - 1, second.base_id - 1)}
    assert loaded.keyed == 0, "plain keys are counted, they are looked for at the next start"
    assert not first.producers, "the topic knows them"


@pytest.mark.parametrize("entry", ["[-1, 0]", "[1, 999]", "[1]", '"1"'])
def test_a_sidecar_with_impossible_producers_is_not_believed(entry: str) -> None:
    rig = BrokerRig()
    for n in range(30):
        publish(rig, n, size=150)
    first, second = rig.broker.topics["t"].log.segments[:2]
    first.producers = {b"p": (1, 0)}
    data = first.sidecar().replace(b"[1, 0]", entry.encode())
    body = json.loads(data[data.index(b'"segment": ') + 11 : data.rindex(b"}")])
    rig.put(f"topics/t/{FIRST[:-4]}.idx", checked_json.encode("segment", body))
    assert load_sidecar(rig.disk, first.path, 0, second.base_id) is None


def test_plain_keys_behind_a_long_stream_are_found_again() -> None:
    rig = BrokerRig(dedupe_keys=3)
    for n in range(3):
        rig.publish("t", b"x", key=b"k%d" % n)
    for n in range(60):
        publish(rig, n, size=150)
    rig.reopen()
    assert [rig.publish("t", b"x", key=b"k%d" % n)[0].duplicate for n in range(3)] == [True] * 3


def test_a_hole_forgets_what_stands_behind_it() -> None:
    """A power cut may keep a later page of a batch and lose an earlier one. Neither was acknowledged: a retry of the lost
    sequence must be stored, and not be answered DUP."""
    for seed in range(40):
        rig = BrokerRig(disk=MortalDisk(random.Random(seed)), segment_bytes=65_536)
        publish(rig, 1, size=2000)
        disk = rig.disk
        assert isinstance(disk, MortalDisk)
        disk.dies_on, disk.dies_after, disk.mortal = ("sync", ".log"), 0, True
        with pytest.raises(Killed):
            publish(rig, *range(2, 12), size=3000)
        rig.reopen(power_cut=True)
        topic = rig.broker.topics["t"]
        if topic.log.lost:
            break
    else:
        raise AssertionError("no seed leaves a hole")
    before = highest(rig)
    assert before is not None
    assert before[1] == topic.log.lost[0][0] - 1
    assert not any(outcome.duplicate for outcome in publish(rig, *range(before[0] + 1, 12), size=3000))
    assert highest(rig) is not None
    rig.reopen()
    assert highest(rig)[0] == 11  # type: ignore[index]


def test_a_producer_is_known_as_long_as_its_newest_record() -> None:
    rig = BrokerRig(retain_acked_for_ms=0)
    subscription = rig.subscribe("t")
    publish(rig, 7, producer=b"old")
    for n in range(60):
        publish(rig, n, size=150)
        rig.take(subscription)
    rig.ack("t", 0, 50)
    rig.advance(1)
    topic = rig.broker.topics["t"]
    assert topic.log.first_id > 0
    assert highest(rig, b"old") is None
    assert highest(rig) == (59, 60)
    assert not publish(rig, 7, producer=b"old")[0].duplicate
    rig.reopen()
    assert highest(rig) == (59, 60)
    assert highest(rig, b"old") == (7, 61)


# -- bounds


def test_those_that_were_used_longest_ago_are_forgotten() -> None:
    budget = KeyBudget(1 << 62)
    table = ProducerTable(2, budget)
    table.settle({b"a": (1, 0), b"b": (1, 1)})
    table.touch(b"a")
    table.settle({b"c": (1, 2)})
    assert [table.find(name, 0) is not None for name in (b"a", b"b", b"c")] == [True, False, True]
    assert budget.used == len(table) == 2
    table.resize(1)
    assert (budget.used, table.find(b"c", 0)) == (1, (1, 2))
    table.clear()
    assert budget.used == 0
    assert not budget.tables


def test_they_count_with_the_keys_of_all_topics() -> None:
    budget = KeyBudget(10)
    table = ProducerTable(100, budget)
    table.settle({b"%d" % n: (1, n) for n in range(20)})
    assert budget.used == len(table) == 10
    assert table.find(b"19", 0) == (1, 19)


def test_a_scan_keeps_the_newest() -> None:
    producers: dict[bytes, tuple[int, int]] = {}
    join_producers(producers, {b"%d" % n: (1, n) for n in range(2 * PRODUCERS_MAX)})
    join_producers(producers, {b"last": (1, 10**9)})
    assert len(producers) == PRODUCERS_MAX
    assert b"last" in producers
    assert b"0" not in producers


def test_fewer_dedupe_keys_forget_the_oldest() -> None:
    rig = BrokerRig()
    for n in range(3):
        rig.publish("t", b"x", key=b"k%d" % n)
    assert rig.change("configure", "t", dedupe_keys="1") == "OK"
    assert rig.publish("t", b"x", key=b"k2")[0].duplicate
    assert not rig.publish("t", b"x", key=b"k0")[0].duplicate
    assert rig.change("configure", "t", dedupe_keys="0") == "OK"
    assert not rig.publish("t", b"x", key=b"k0")[0].duplicate, "switched off"
