"""Dead letters and their way back, with a kill or a power cut at every call to the disk. Contract: delivery.md, "Attempts"."""

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.simulation.world import Killed, MortalDisk
from tests.support.broker_rig import BrokerRig
from tests.support.shares import one_in
from toymq_py.errors import BadArgument

pytestmark = pytest.mark.usefixtures("without_log")

MAX_ATTEMPTS = 3
POISON = 2
"""Messages; each with and without headers and a key."""


def fresh(*, dedupe_keys: int = 65_536) -> BrokerRig:
    rig = BrokerRig(
        disk=MortalDisk(random.Random(1)), max_attempts=MAX_ATTEMPTS, segment_bytes=4096, dedupe_keys=dedupe_keys
    )
    rig.broker.topic_or_new("t").publisher.publish([b"k", b""], [b"poison", b"p" * 3000], [b"a: b\n", b""])
    rig.loop.drain()
    rig.subscribe("t").close()
    rig.subscribe("t", "other").close()
    rig.ack("t", 0, 0)
    return rig


def work(rig: BrokerRig, seen: list[tuple[int, int]]) -> None:
    """Run a worker that nacks every message until none is left; ``seen``: (id, attempt) of each delivery."""
    rig.advance(0.2)
    sub = rig.subscribe("t")
    while taken := rig.take(sub):
        seen += taken
        rig.advance(0.2)
        for msg_id, _ in taken:
            rig.nack("t", msg_id, msg_id)
        rig.advance(0.2)
    sub.close()


def until_dead(rig: BrokerRig, do: Callable[[], object], nth: int, *, power_cut: bool) -> bool:
    """Call ``do``, and kill the broker at its nth call to the disk. Returns: whether there were that many calls."""
    disk = rig.disk
    assert isinstance(disk, MortalDisk)
    disk.dies_after, disk.mortal = nth, True
    try:
        do()
    except Killed:
        rig.reopen(power_cut=power_cut)
        return True
    disk.mortal = False
    return False


def letters(rig: BrokerRig) -> list[str]:
    return [headers["toymq-origin-id"] for *_, headers in rig.records("t.dlq")]


@one_in(3)
@pytest.mark.parametrize("power_cut", [False, True], ids=["kill", "power cut"])
@pytest.mark.parametrize("dedupe_keys", [65_536, 0])
def test_a_poison_message_becomes_one_dead_letter_wherever_the_broker_dies(
    power_cut: bool, dedupe_keys: int, share: int
) -> None:
    nth = 0
    while True:
        rig = fresh(dedupe_keys=dedupe_keys)
        seen: list[tuple[int, int]] = []
        died = until_dead(rig, partial(work, rig, seen), nth, power_cut=power_cut)
        work(rig, seen)
        where = f"killed at disk call {nth}"
        assert sorted(letters(rig)) == ["0", "1"], where
        assert all(headers["toymq-attempts"] == "3" for *_, headers in rig.records("t.dlq")), where
        assert {attempt for _, attempt in seen} == {1, 2, 3}, where
        again = [count for count in Counter(seen).values() if count > 1]
        assert len(again) <= POISON * died, f"{where}: only attempts that were not stored may be there twice"
        work(rig, after := [])
        assert after == [], where
        if not died:
            break
        nth += share
    assert nth > 30, "there was something to die at"


@pytest.mark.parametrize("power_cut", [False, True], ids=["kill", "power cut"])
def test_exactly_so_many_attempts_although_the_broker_is_killed_between_them(power_cut: bool) -> None:
    """A kill counts as an attempt only for the lowest id that a consumer holds (ADR 0053): first message 0 uses up its
    attempts, then message 1."""
    rig = fresh()
    seen: list[tuple[int, int]] = []
    for _ in range(2 * MAX_ATTEMPTS):
        assert len(letters(rig) if "t.dlq" in rig.broker.topics else []) == len(seen) // (2 * MAX_ATTEMPTS)
        seen += rig.take(rig.subscribe("t"))
        rig.advance(0.2)
        rig.reopen(power_cut=power_cut)
        rig.advance(0.2)
    assert rig.take(rig.subscribe("t")) == []
    assert seen == [(0, 1), (1, 1), (0, 2), (1, 1), (0, 3), (1, 1), (1, 1), (1, 2), (1, 3)]
    assert letters(rig) == ["0", "1"]


@one_in(3)
@pytest.mark.parametrize("power_cut", [False, True], ids=["kill", "power cut"])
def test_redrive_brings_each_back_once_wherever_the_broker_dies(power_cut: bool, share: int) -> None:
    nth = 0
    while True:
        rig = fresh()
        work(rig, [])
        died = until_dead(rig, partial(rig.redrive, "t.dlq"), nth, power_cut=power_cut)
        back = len(rig.records("t")) - POISON
        count, error = rig.redrive("t.dlq")
        where = f"killed at disk call {nth}"
        assert error is None, where
        assert count == POISON - back, where
        assert sorted(payload for *_, payload, _ in rig.records("t")[2:]) == [b"poison", b"p" * 3000], where
        assert [msg_id for msg_id, _ in rig.take(rig.subscribe("t"))] == [2, 3], where
        assert rig.take(rig.subscribe("t", "other")) == [(0, 1), (1, 1)], where
        assert rig.redrive("t.dlq") == (0, None), where
        if not died:
            break
        nth += share
    assert nth > 5, "there was something to die at"


def test_keys_that_others_pushed_out_make_no_second_copy() -> None:
    """After a restart without stored offsets 300 messages are dead-lettered again, although 70,000 newer keys have pushed the
    dedupe keys of their letters out of the table: each has one letter."""
    rig = BrokerRig(max_attempts=1, dedupe_keys_total=10_000, segment_bytes=1 << 20)
    rig.publish("t", *[b"x"] * 300)
    rig.take(rig.subscribe("t", window=300))
    rig.flush("t")
    rig.broker.topic("t").nack("c", [(0, 299)], 0.0)
    rig.loop.drain()  # no timer runs: the offsets are not stored
    assert len(letters(rig)) == 300
    keys = [b"%d" % n for n in range(70_000)]
    rig.broker.topic_or_new("u").publisher.publish(keys, [b""] * len(keys))
    rig.loop.drain()
    rig.reopen()
    rig.advance(1)
    assert len(letters(rig)) == 300
    assert rig.broker.topic("t").consumers["c"].floor == 300


def with_one_letter() -> tuple[BrokerRig, bytes]:
    """Make a broker whose message 0 of "t" has become dead letter 0 of "t.dlq". Returns: the broker, and the key with which a
    redrive publishes the letter."""
    rig = BrokerRig(max_attempts=1)
    rig.publish("t", b"poison", key=b"k")
    rig.take(sub := rig.subscribe("t"))
    rig.nack("t", 0, 0)
    sub.close()
    rig.flush("t")
    run, _, _ = rig.broker.topic("t.dlq").log.read(0, 1)
    assert run is not None
    return rig, b"redrive:t.dlq:0:%d" % run.ts_ns[0]


BACK = b"toymq-origin-key: k\ntoymq-redrives: 1\ntoymq-redrive-consumer: c\n"
"""The headers of that letter, come back."""

FORGERIES: dict[str, dict[str, Any]] = {
    "another payload": {"payloads": [b"forged"]},
    "other headers": {"payloads": [b"poison"], "headers": [b"toymq-redrives: 1\n"]},
    "delayed": {"payloads": [b"poison"], "headers": [BACK], "delays_ms": [86_400_000]},
    "about to expire": {"payloads": [b"poison"], "headers": [BACK], "ttls_ms": [1]},
}


@pytest.mark.parametrize("forgery", FORGERIES.values(), ids=FORGERIES)
@pytest.mark.parametrize("killed", [False, True], ids=["at once", "after a kill"])
def test_a_key_that_a_client_made_up_ends_no_letter(forgery: dict[str, Any], killed: bool) -> None:
    rig, key = with_one_letter()
    rig.broker.topic("t").publisher.publish([key], **forgery)
    rig.loop.drain()
    if killed:
        rig.reopen()
    assert rig.broker.topic("t.dlq").describe()["redriven"] == []
    assert rig.redrive("t.dlq") == (1, None)
    assert rig.records("t")[2][1:3] == (key, b"poison")
    subscription = rig.subscribe("t")
    assert (2, 1) in rig.take(subscription), "the letter is back"
    assert rig.redrive("t.dlq") == (0, None), "and goes back once"
    subscription.close()
    rig.reopen()
    assert rig.broker.topic("t.dlq").describe()["redriven"] == [(0, 0)]


def test_nor_does_one_that_names_a_producer_or_is_not_stored_yet() -> None:
    rig, key = with_one_letter()
    publisher = rig.broker.topic("t").publisher
    publisher.publish_sequenced([key], [b"poison"], [BACK], [7])
    rig.loop.drain()
    assert rig.redrive("t.dlq") == (1, None)
    assert rig.take(rig.subscribe("t")) == [(1, 1), (2, 1)]

    rig, key = with_one_letter()
    rig.broker.topic("t").publisher.publish([key], [b"forged"])
    assert rig.redrive("t.dlq") == (1, None)
    assert rig.take(rig.subscribe("t")) == [(1, 1), (2, 1)]


def test_a_restart_may_give_the_name_of_a_producer_back_and_leaves_the_letter_where_it_is() -> None:
    rig, key = with_one_letter()
    rig.broker.topic("t").publisher.publish_sequenced([key], [b"other"], None, [7])
    rig.loop.drain()
    assert rig.redrive("t.dlq") == (1, None)
    rig.reopen()
    (plain,) = rig.broker.topic("t").publisher.publish([key], [b"plain"])
    assert isinstance(plain.error, BadArgument)
    assert rig.redrive("t.dlq") == (0, None)
    assert (2, 1) in rig.take(rig.subscribe("t"))


@pytest.mark.parametrize("killed", [False, True], ids=["at once", "after a kill"])
def test_a_count_of_redrives_that_no_number_holds_is_none(killed: bool) -> None:
    """Found in review: int() raises for 5,000 digits, so REDRIVE never ended, and after a restart the broker did not start."""
    rig = BrokerRig(max_attempts=1)
    rig.publish("t", b"poison", key=b"redrive:x", headers=b"toymq-redrives: " + b"9" * 5000 + b"\n")
    rig.take(sub := rig.subscribe("t"))
    rig.nack("t", 0, 0)
    sub.close()
    rig.flush("t")
    if killed:
        run, _, _ = rig.broker.topic("t.dlq").log.read(0, 1)
        assert run is not None
        rig.publish("t", b"x", key=b"redrive:t.dlq:0:%d" % run.ts_ns[0])
        rig.reopen()
    assert rig.redrive("t.dlq") == (1, None)
    _, _, payload, headers = rig.records("t")[-1]
    assert (payload, headers["toymq-redrives"]) == (b"poison", "1")


def test_a_redrive_that_meets_a_bug_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A REDRIVE that fails with an unexpected error ends; otherwise other callers of REDRIVE, and the broker's shutdown, would
    wait for it."""
    rig, _ = with_one_letter()
    monkeypatch.setattr("toymq_py.deadletter.redrive.return_of", lambda *_: 1 / 0)
    assert rig.redrive("t.dlq") == (0, "INTERNAL")
    monkeypatch.undo()
    assert rig.redrive("t.dlq") == (1, None)


def test_a_letter_that_a_client_brought_back_word_for_word_is_back() -> None:
    """A client may republish a dead letter with the dedupe key of a redrive. The broker cannot tell this from a redrive, and
    need not."""
    rig, key = with_one_letter()
    rig.broker.topic("t").publisher.publish([key], [b"poison"], [BACK])
    rig.loop.drain()
    assert rig.redrive("t.dlq") == (1, None)
    assert rig.take(rig.subscribe("t")) == [(1, 1)]


@pytest.mark.parametrize("synced", [True, False])
def test_a_kill_soon_after_each_ack_uses_up_attempts_unless_the_ack_was_synced(synced: bool) -> None:
    """As docs/delivery-guarantees.md says: each delivery was on the disk before the kill, but an ack that was killed within 100
    ms was not, unless the client asked for a sync."""
    rig = BrokerRig(max_attempts=MAX_ATTEMPTS)
    rig.publish("t", b"healthy")
    attempts = []
    for _ in range(MAX_ATTEMPTS):
        taken = rig.take(rig.subscribe("t"))
        rig.advance(0.2)  # its handler works for longer than the offsets wait to be written
        for msg_id, attempt in taken:
            attempts.append(attempt)
            assert rig.ack("t", msg_id, msg_id, flush=synced) == 1, "OK"
        rig.reopen()
    assert attempts == ([1] if synced else [1, 2, 3])
    rig.advance(1)
    assert ("t.dlq" in rig.broker.topics) is not synced
