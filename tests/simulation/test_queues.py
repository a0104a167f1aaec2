"""Simulated work queues: every promise of delivery.md is kept; and for each promise a mutant of the broker is caught that
breaks it."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from tests.simulation.world import QUEUES, run
from toymq_chaos.verdict import Verdict
from toymq_py.broker import Broker
from toymq_py.config.topic_settings import TopicSettings
from toymq_py.consumer import Consumer, KeyLanes
from toymq_py.deadletter.mover import DeadLetterMover
from toymq_py.deadletter.transfer import TransferBatch
from toymq_py.errors import QueueFull
from toymq_py.metrics import Metrics
from toymq_py.records import Records
from toymq_py.storage import recovery
from toymq_py.storage.recovery import RecoveredLog
from toymq_py.storage.topic_settings import LoadedSettings
from toymq_py.topic import Delivery, Subscription, Topic
from toymq_py.topic.channel import Channel
from toymq_py.topic.consumer_offsets import ConsumerOffsets
from toymq_py.topic.delays import Schedule
from toymq_py.topic.deliverer import Deliverer
from toymq_py.topic.keyed_deliverer import KeyedDeliverer
from toymq_py.topic.publisher import Published, Publisher, Refused
from toymq_py.topic.redrive_consumer import RedriveConsumer
from toymq_py.topic.retention import Retention

pytestmark = pytest.mark.usefixtures("without_log")

SEEDS = 8


def test_every_promise_is_kept() -> None:
    done: Counter[str] = Counter()
    total = Verdict()
    for seed in range(SEEDS):
        events, verdict = run(seed, QUEUES)
        assert verdict.ok, f"seed {seed}: {verdict.violations[0]}"
        total.kills += verdict.kills
        total.duplicated += verdict.duplicated
        done.update(event.op for event in events if event.result == "ok")
        done.update("letter" for event in events if event.op == "deliver" and event.origin_id is not None)
        done.update("return" for event in events if event.op == "deliver" and (event.key or "").startswith("redrive:"))
    assert total.kills > SEEDS
    assert len(total.duplicated) >= 5, "causes of redeliveries"
    for op in ("pull", "letter", "return", "redrive", "purge", "delete", "config", "settings", "dropped"):
        assert done[op] > 1, f"{op} occurs: {done}"


@pytest.mark.torture
def test_every_promise_is_kept_in_many_worlds() -> None:
    for seed in range(100_000, 100_000 + int(os.environ.get("TOYMQ_SEEDS", "5000"))):
        _, verdict = run(seed, QUEUES)
        assert verdict.ok, f"seed {seed}: {verdict.violations[0]}"


def test_consumers_that_may_have_few_unacked_messages_get_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    reached: list[str] = []
    monkeypatch.setattr(Metrics, "limit_reached", lambda self, limit: reached.append(limit))
    for seed in range(3):
        _, verdict = run(seed, replace(QUEUES, max_unacked=3))
        assert verdict.ok, f"seed {seed}: {verdict.violations[0]}"
    assert reached.count("unacked") > 30


def test_one_that_is_forgotten_at_its_limit_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Deliverer, "has_room_again", lambda self: False)
    assert not all(run(seed, replace(QUEUES, max_unacked=3))[1].ok for seed in range(20))


def test_the_same_seed_is_the_same_history() -> None:
    first, _ = run(4711, QUEUES)
    second, _ = run(4711, QUEUES)
    assert [event.to_json() for event in first] == [event.to_json() for event in second]


def caught(promise: str, seeds: int = 40, first: int = 0) -> bool:
    """Whether some world finds that a mutant breaks a promise. Where that is rare, ``first`` is near the world that does: look
    again from 0 when the workload has changed."""
    for seed in range(first, first + seeds):
        _, verdict = run(seed, QUEUES)
        if any(promise in violation.promise for violation in verdict.violations):
            return True
    return False


def test_a_delay_that_is_not_kept_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Schedule, "add", lambda self, ids, deliver_at_ns, now_ns: None)
    assert caught("a message came before its time")


def test_a_schedule_that_is_forgotten_by_a_restart_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    recover = recovery.recover_log

    def punctual(*arguments: Any, **options: Any) -> RecoveredLog:
        found = recover(*arguments, **options)
        found.scheduled_ids, found.deliver_at_ns = found.scheduled_ids[:0], found.deliver_at_ns[:0]
        return found

    monkeypatch.setattr("toymq_py.topic_opener.recover_log", punctual)
    assert caught("a message came before its time")


def test_a_key_that_is_with_two_workers_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeyLanes, "enter", lambda self, msg_id, key: True)
    assert caught("a message came before the ack of the one before it of its group")


def test_a_key_whose_order_is_forgotten_by_a_restart_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = KeyedDeliverer.__init__

    def late(self: KeyedDeliverer, *arguments: Any) -> None:
        begin(self, *arguments)
        self._lanes.scanned = self._consumer.cursor

    monkeypatch.setattr(KeyedDeliverer, "__init__", late)
    assert caught("a message came before the ack of the one before it of its group")


def drop_expired(monkeypatch: pytest.MonkeyPatch, over: Callable[[int, int], int]) -> None:
    real = Deliverer._drop_expired

    def other(self: Deliverer, run: Records, start: int, rows: int) -> int:
        now_ns = self._context.clock.wall_ns()
        times, run.expires_at_ns = run.expires_at_ns, [over(at_ns, now_ns) for at_ns in run.expires_at_ns or ()]  # type: ignore[misc]
        try:
            return real(self, run, start, rows)
        finally:
            run.expires_at_ns = times  # type: ignore[misc]

    monkeypatch.setattr(Deliverer, "_drop_expired", other)


def test_a_ttl_that_ends_too_early_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    drop_expired(monkeypatch, lambda at_ns, now_ns: min(at_ns, now_ns))
    assert caught("an acknowledged message never came to")


def test_a_ttl_that_is_not_kept_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    drop_expired(monkeypatch, lambda at_ns, now_ns: 0)
    assert caught("a message came after it had expired")


def keyless(monkeypatch: pytest.MonkeyPatch, prefix: bytes) -> None:
    """Mutant: the keys of records that the broker itself appends are never found again."""
    real = Publisher.publish_unlimited
    numbers = count()

    def other(self: Publisher, keys: Sequence[bytes], *rest: Any) -> Sequence[Published]:
        return real(self, [b"%b:%d" % (key, next(numbers)) if key.startswith(prefix) else key for key in keys], *rest)

    monkeypatch.setattr(Publisher, "publish_unlimited", other)


def test_a_second_dead_letter_after_a_kill_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    keyless(monkeypatch, b"dlq:")
    assert caught("a message became two dead letters", 150, first=38)


def test_a_dead_letter_that_is_acked_before_it_is_stored_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def stored_at_once(self: DeadLetterMover, channel: Channel, held: Any) -> None:
        channel.ack_dead_lettered(held[0].first, held[-1].last)
        self._scheduler.soon(self._next)

    monkeypatch.setattr(DeadLetterMover, "_move", stored_at_once)
    assert caught("a message was never acked, and did not come again")


def test_a_max_attempts_that_is_not_kept_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Consumer, "limit_attempts", lambda self, most: None)
    assert caught("a message was delivered more often than max_attempts")


def test_a_dead_letter_that_gives_up_early_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = Consumer.limit_attempts
    monkeypatch.setattr(Consumer, "limit_attempts", lambda self, most: limit(self, most and most - 1))
    assert caught("a message became a dead letter before its last attempt")


def test_a_dead_letter_that_comes_back_twice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    keyless(monkeypatch, b"redrive:")
    add = RedriveConsumer.ack
    once: set[int] = set()

    def forgetful(self: RedriveConsumer, ids: Sequence[int]) -> int:
        known = [msg_id for msg_id in ids if msg_id in once]
        once.update(ids)
        add(self, known)
        return len(ids)

    monkeypatch.setattr(RedriveConsumer, "ack", forgetful)
    assert caught("a dead letter came back twice")


def test_a_dead_letter_that_is_acked_before_it_is_back_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = TransferBatch.append_to

    def only_letters(self: TransferBatch, topic: Topic, stored: Any, done: Callable[[None], None]) -> None:
        if topic.is_dead_letters:
            real(self, topic, stored, done)  # type: ignore[arg-type]
            return
        stored(0, len(self.ids), Refused(len(self.ids), QueueFull("not looked at")))
        done(None)

    monkeypatch.setattr(TransferBatch, "append_to", only_letters)
    assert caught("a dead letter never came back")


def test_a_dead_letter_that_comes_back_to_everyone_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toymq_py.topic.deliverer.rows_for", lambda topic, run, start, stop, name: (start, stop))
    monkeypatch.setattr(Topic, "skip_for_others", lambda self, msg_id, name: None)
    assert caught("a dead letter came back to another consumer")


def test_a_publish_that_is_stored_and_refused_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Publisher._append

    def stored_anyway(self: Publisher, keys: Sequence[bytes], payloads: Sequence[bytes], *rest: Any, **options: Any) -> Any:
        outcomes = real(self, keys, payloads, *rest, **options)
        if any(isinstance(outcome, Refused) for outcome in outcomes):
            self.committer.append(list(keys), list(payloads))
        return outcomes

    monkeypatch.setattr(Publisher, "_append", stored_anyway)
    assert caught("a refused message was delivered", first=21)


def test_an_ack_that_does_not_wait_for_its_flush_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConsumerOffsets, "flush", lambda self, done: done(None))
    assert caught("an acked message was delivered again although its ack was on the disk", 150)


def test_a_limit_that_does_not_count_what_it_drops_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Retention.drop

    def uncounted(self: Retention, first: int, last: int) -> None:
        real(self, first, last)
        self.dropped_total = min(1, self.dropped_total)

    monkeypatch.setattr(Retention, "drop", uncounted)
    assert caught("were counted", first=12)


def test_a_message_of_two_workers_at_a_time_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Channel.take

    def twice(self: Channel, subscription: Subscription, room: int, max_bytes: int) -> Delivery | None:
        delivery = take(self, subscription, room, max_bytes)
        if delivery is not None and delivery.attempt == 1 and self.consumer.name == "worker":
            self.consumer.nack(delivery.ranges(), self.context.clock.monotonic(), 0.0, self.context.policy)
        return delivery

    monkeypatch.setattr(Channel, "take", twice)
    assert caught("a message came again before its visibility timeout, without a nack")


def test_a_lease_that_ends_with_the_poll_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    detach = Channel.detach

    def released(self: Channel, subscription: Subscription) -> None:
        detach(self, subscription)
        self.consumer.release(subscription.lessee)
        self.notify_ready()

    monkeypatch.setattr(Channel, "detach", released)
    assert caught("a message came again before its visibility timeout, without a nack")


def test_a_purge_that_does_nothing_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Retention, "purge", lambda self, done: done(self._log.messages(), None))
    assert caught("a message came that had been removed", 150, first=11)


def test_a_delete_that_does_nothing_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Broker, "delete", lambda self, name, done: done(self.topic(name).log.messages(), None))
    assert caught("a message came that had been removed", 150, first=6)


def test_a_producer_that_is_forgotten_by_a_restart_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    recover = recovery.recover_log

    def forgetful(*arguments: Any, **options: Any) -> RecoveredLog:
        found = recover(*arguments, **options)
        found.producers = {}
        return found

    monkeypatch.setattr("toymq_py.topic_opener.recover_log", forgetful)
    assert caught("one key was given two ids", first=9)


def test_settings_that_are_forgotten_by_a_restart_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toymq_py.storage.topic_settings.load", lambda fs, path: LoadedSettings(TopicSettings()))
    assert caught("a setting is not what it was set to")
