"""Simulated brokers: nothing acknowledged is lost, and nothing unexpected is delivered; and mutants of the broker are
caught."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from tests.simulation.world import VISIBILITY_MS, Plan, run
from tests.support.sim_disk import SimDisk, SimFile
from toymq_chaos.verdict import Verdict
from toymq_py.consumer import Consumer, ConsumerSnapshot, Lessee
from toymq_py.storage import recovery, segment_inventory
from toymq_py.storage.commit.batch import Commit, CommitState
from toymq_py.storage.recovery import RecoveredLog
from toymq_py.storage.scanner import ScanResult
from toymq_py.topic import Delivery, Registration, Subscription, Topic
from toymq_py.topic.channel import Channel

pytestmark = pytest.mark.usefixtures("without_log")

SEEDS = 12


def test_every_promise_is_kept() -> None:
    total = Verdict()
    for seed in range(SEEDS):
        _, verdict = run(seed)
        assert verdict.ok, f"seed {seed}: {verdict.violations[0]}"
        total.acknowledged += verdict.acknowledged
        total.kills += verdict.kills
        total.duplicated += verdict.duplicated
    assert total.acknowledged == SEEDS * 48, "the worlds publish everything in the end"
    assert total.kills > SEEDS
    assert len(total.duplicated) == 5, "every cause of a redelivery occurs"


@pytest.mark.torture
def test_every_promise_is_kept_in_many_worlds() -> None:
    for seed in range(100_000, 100_000 + int(os.environ.get("TOYMQ_SEEDS", "10000"))):
        _, verdict = run(seed)
        assert verdict.ok, f"seed {seed}: {verdict.violations[0]}"


def test_the_same_seed_is_the_same_history() -> None:
    first, _ = run(4711)
    second, _ = run(4711)
    assert [event.to_json() for event in first] == [event.to_json() for event in second]
    other, _ = run(4712)
    assert first != other


def caught(seeds: int = 150, first: int = 0) -> str:
    """Return the first promise that a mutant breaks in one of the worlds."""
    for seed in range(first, first + seeds):
        try:
            _, verdict = run(seed)
        except Exception as error:  # noqa: BLE001 (a broker that does not start again is caught, too)
            return repr(error)
        if not verdict.ok:
            return verdict.violations[0].promise
    return "nothing"


def test_a_broker_without_fsync_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimFile, "sync", lambda self: None)
    assert caught() != "nothing"


def test_a_broker_that_says_ok_before_the_commit_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolved(self: Commit) -> None:
        self.state, self.error, self._waiters = CommitState.DONE, None, []

    monkeypatch.setattr(Commit, "__init__", resolved)
    assert caught() != "nothing"


def test_a_broker_that_ignores_has_acked_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    read = ConsumerSnapshot.from_json

    def forgetful(cls: type[ConsumerSnapshot], value: object) -> ConsumerSnapshot:
        return replace(read(value), has_acked=False, acked_above=(), attempts=())

    monkeypatch.setattr(ConsumerSnapshot, "from_json", classmethod(forgetful))
    assert caught() != "nothing"


def test_a_broker_that_does_not_rebuild_its_dedupe_table_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    recover = recovery.recover_log

    def keyless(*arguments: Any, **options: Any) -> RecoveredLog:
        found = recover(*arguments, **options)
        found.keys = []
        return found

    monkeypatch.setattr("toymq_py.topic_opener.recover_log", keyless)
    assert caught() == "one key was given two ids"


def test_a_broker_that_keeps_a_torn_tail_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    scan = segment_inventory.scan_segment

    def careless(fs: Any, path: str, base_id: int, **options: Any) -> ScanResult:
        result = scan(fs, path, base_id, **options)
        if result.torn_bytes:
            result.segment.end, result.torn_bytes = result.size, 0
        return result

    monkeypatch.setattr(segment_inventory, "scan_segment", careless)
    assert caught(60, first=1188) != "nothing", "it is rare: look again from 0 when the workload has changed"


def test_a_world_ends_when_everything_was_seen() -> None:
    events, verdict = run(1)
    assert "drained" in [event.op for event in events[-20:]]
    assert verdict.delivered >= verdict.acknowledged * Plan().consumers


def test_a_broker_that_answers_sub_before_the_consumer_is_on_the_disk_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug that the simulation found: after a kill the consumer was forgotten, and retention removed messages that it had not
    seen (ADR 0009)."""
    subscribe = Topic.subscribe

    def known(*arguments: Any, **options: Any) -> tuple[Subscription, Registration]:
        return subscribe(*arguments, **options)[0], Registration.KNOWN

    monkeypatch.setattr(Topic, "subscribe", known)
    assert caught(1000, first=20) != "nothing"


def test_a_broker_that_does_not_sync_names_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimDisk, "sync_dir", lambda self, path: None)
    assert caught() != "nothing"


def test_a_broker_that_trusts_names_of_one_that_was_killed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug that the simulation found: a killed broker had made a file name and not synced it; the next broker found it and
    relied on it, and a power cut lost it."""
    make, sync_dir = SimDisk.mkdir, SimDisk.sync_dir

    def mkdir(self: SimDisk, path: str) -> None:
        if not self.exists(path):
            self.__dict__.setdefault("made", set()).add(path)
        make(self, path)

    def sync_dir_of_own(self: SimDisk, path: str) -> None:
        if path != "/data" or "/data/d" in self.__dict__.get("made", ()):
            sync_dir(self, path)

    monkeypatch.setattr(SimDisk, "mkdir", mkdir)
    monkeypatch.setattr(SimDisk, "sync_dir", sync_dir_of_own)
    assert caught(50, first=243) != "nothing", "it is rare: look again from 0 when the workload has changed"


def test_a_broker_whose_nack_acks_the_message_away_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Consumer, "nack", lambda self, ranges, *_: self.ack(ranges))
    assert caught() == "a message was never acked, and did not come again"


def with_leases(monkeypatch: pytest.MonkeyPatch, deadline_of: Callable[[float], float]) -> None:
    """Mutant: all first deliveries get another deadline than the one that was asked for."""
    take = Consumer.take_fresh

    def take_fresh(self: Consumer, owner: Lessee, first: int, last: int, deadline: float, now: float | None = None) -> None:
        take(self, owner, first, last, deadline_of(deadline), now)

    monkeypatch.setattr(Consumer, "take_fresh", take_fresh)


def test_a_visibility_timeout_that_is_20_times_too_early_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    with_leases(monkeypatch, lambda deadline: deadline - VISIBILITY_MS / 1000 * 19 / 20)
    assert caught() == "a message came again before its visibility timeout, without a nack"


def test_a_lease_that_never_expires_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    with_leases(monkeypatch, lambda deadline: inf)
    assert caught(first=260) == "a message did not come again after its visibility timeout, a later one did"


NEVER_DONE = """
from tests.simulation.world import run
from toymq_py.consumer import Consumer
Consumer.tick = lambda self, now: False
run(4712)
"""


def test_a_broker_whose_ticker_never_comes_to_an_end_is_caught() -> None:
    """Runs in a separate process: the world is left half-way, and its coroutines warn when they are garbage-collected."""
    done = subprocess.run([sys.executable, "-c", NEVER_DONE], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "RuntimeError: seed 4712: the simulation goes on and on at 1000." in done.stderr


def test_a_broker_that_sends_every_delivery_twice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Channel.take

    def twice(self: Channel, subscription: Subscription, room: int, max_bytes: int) -> Delivery | None:
        delivery = take(self, subscription, room, max_bytes)
        if delivery is not None and delivery.attempt == 1:
            self.consumer.nack(delivery.ranges(), self.context.clock.monotonic(), 0.0, self.context.policy)
        return delivery

    monkeypatch.setattr(Channel, "take", twice)
    assert caught() == "a message came again before its visibility timeout, without a nack"
