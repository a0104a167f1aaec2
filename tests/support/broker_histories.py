"""Random operations on a whole broker on a simulated disk, and checks of what its clients may rely on afterwards."""

import errno
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.support.sim_disk import SimDisk
from tests.support.sim_loop import SimLoop
from toymq_py.broker import Broker
from toymq_py.consumer_options import Start
from toymq_py.errors import StorageFailed
from toymq_py.storage.commit.batch import CommitState
from toymq_py.topic import Published, Subscription, Topic

TOPIC = "t"
CONSUMER = "c"
KEYS = 40


@dataclass
class History:
    """What clients were told by the broker: later answers must never contradict it."""

    seed: int
    records: dict[int, tuple[bytes, bytes, bytes]] = field(default_factory=dict)
    """Id to key, payload and headers of what was answered OK."""
    duplicates: dict[int, bytes] = field(default_factory=dict)
    """Id to key of what was answered DUP: that is a promise, too, also for a message whose own OK never came."""
    refused: set[bytes] = field(default_factory=set)
    """Payloads that got an error other than STORAGE_FAILED: they may never appear."""
    acked: set[int] = field(default_factory=set)
    settled: set[int] = field(default_factory=set)
    """Acked, and flushed before the call that said so."""
    moved: bool = False
    """SEEK and FORGET make old acks void."""
    waiting: list[tuple[Published, list[bytes], list[bytes], list[bytes]]] = field(default_factory=list)

    def settle(self) -> None:
        """Add what the broker has answered since the last call."""
        still = []
        for outcome, keys, payloads, headers in self.waiting:
            error = outcome.error or outcome.commit.error
            if error is not None:
                if error.code != "STORAGE_FAILED" and not outcome.duplicate:
                    self.refused.update(payload for payload in payloads if payload)
            elif outcome.commit.state is CommitState.PENDING:
                still.append((outcome, keys, payloads, headers))
            elif outcome.duplicate:
                known = self.records.get(outcome.first_id)
                assert known is None or known[0] == keys[0], f"seed {self.seed}: DUP of another key's message"
                self.duplicates[outcome.first_id] = keys[0]
            else:
                for row in range(outcome.count):
                    msg_id = outcome.first_id + row
                    assert msg_id not in self.records, f"seed {self.seed}: id {msg_id} was given twice"
                    self.records[msg_id] = (keys[row], payloads[row], headers[row])
        self.waiting = still


def check(broker: Broker, history: History) -> None:
    """Check that everything acknowledged is there unchanged, and that nothing refused is there."""
    topic = broker.topics.get(TOPIC)
    where = f"seed {history.seed}"
    if topic is None:
        assert not history.records, f"{where}: the topic is gone with {len(history.records)} acknowledged messages"
        return
    log = topic.log
    for msg_id, record in history.records.items():
        if msg_id < log.first_id or any(first <= msg_id <= last for first, last in log.removed):
            assert msg_id in history.acked or history.moved, f"{where}: unacked message {msg_id} was removed"
            continue
        run, row, _ = log.read(msg_id, 1)
        assert run is not None, f"{where}: message {msg_id} is lost"
        headers = b"" if run.headers is None else run.headers[row]
        assert (run.keys[row], run.payloads[row], headers) == record, f"{where}: message {msg_id} has changed"
    for msg_id, key in history.duplicates.items():
        if msg_id >= log.first_id and not any(first <= msg_id <= last for first, last in log.removed):
            run, row, _ = log.read(msg_id, 1)
            assert run is not None, f"{where}: message {msg_id}, answered DUP, is lost"
            assert run.keys[row] == key, f"{where}: message {msg_id}, answered DUP, is another one"
    at = log.first_id
    while at < log.committed_id:
        run, row, following = log.read(at, 64)
        if run is not None:
            for payload in run.payloads[row : row + following - at]:
                assert payload not in history.refused, f"{where}: a refused message appeared"
        at = following


def live(
    broker: Broker, loop: SimLoop, disk: SimDisk, history: History, rng: random.Random, *,
    faults: bool = True, also: Callable[[], None] = lambda: None,
) -> None:  # fmt: skip
    """Run one life of the broker: random operations, each followed by a random part of the loop's due work.

    Args:
        faults: whether calls of the disk fail now and then.
        also: called with each operation.
    """
    subscription: Subscription | None = None
    delivered: list[int] = []
    for _ in range(rng.randrange(5, 40)):
        try:
            topic = broker.topic_or_new(TOPIC)
        except StorageFailed:  # nothing of it was stored, and its removal failed, too: it is closed until a restart
            assert not history.records
            break
        choice = rng.random()
        if choice < 0.42:
            publish(topic, history, rng)
        elif choice < 0.45:
            subscription = come_and_go(topic, subscription, history, rng)
        elif choice < 0.57:
            if subscription is None or subscription.closed:
                subscription = subscribe(topic, rng)
            delivered += take(subscription, history)
            if rng.random() < 0.2:
                subscription.close()
        elif choice < 0.70 and delivered:
            ack(topic, delivered.pop(rng.randrange(len(delivered))), history, rng)
        elif choice < 0.75 and delivered:
            topic.nack(CONSUMER, [(delivered[-1], delivered[-1])], 0)
        elif choice < 0.80:
            loop.advance(rng.choice([0.05, 0.2, 6.0]))
            broker.tick(loop.clock.monotonic())
        elif choice < 0.83 and faults:
            op = rng.choice(["pwrite", "sync", "allocate", "truncate", "rename", "open", "sync_dir", "pread"])
            disk.fail(op, rng.randrange(1, 3), rng.choice([errno.EIO, errno.ENOSPC]))
        elif choice < 0.85 and rng.random() < 0.3:
            move(topic, history, rng)
            delivered.clear()
        also()
        for _ in range(rng.randrange(6)):
            loop.step()
        history.settle()
    if rng.random() < 0.3:
        loop.drain()
    history.settle()


def come_and_go(
    topic: Topic, subscription: Subscription | None, history: History, rng: random.Random
) -> Subscription | None:
    """Let a subscriber leave and return while publishes go into one batch."""
    for _ in range(rng.randrange(2, 5)):
        publish(topic, history, rng)
        if subscription is not None and not subscription.closed:
            subscription.close()
        elif rng.random() < 0.8:
            subscription = subscribe(topic, rng)
    return subscription


def publish(topic: Topic, history: History, rng: random.Random) -> None:
    count = rng.randrange(1, 5)
    keys = [b"k%d" % rng.randrange(KEYS) if rng.random() < 0.5 else b"" for _ in range(count)]
    payloads = [rng.randbytes(rng.choice([0, 8, 50, 900])) for _ in range(count)]
    headers = [rng.choice([b"", b"Name: value\n"]) for _ in range(count)] if rng.random() < 0.2 else None
    at = 0
    for outcome in topic.publisher.publish(keys, payloads, headers):
        stop = at + outcome.count
        part = headers[at:stop] if headers is not None else [b""] * outcome.count
        history.waiting.append((outcome, keys[at:stop], payloads[at:stop], part))
        at = stop
    assert at == count, "every publish has an outcome"


def subscribe(topic: Topic, rng: random.Random) -> Subscription:
    window = rng.choice([1, 5, 100])
    return topic.subscribe(
        CONSUMER, None, window=window, visibility_s=5, wake=lambda _: True, ended=lambda _, __: None
    )[0]


def take(subscription: Subscription, history: History) -> list[int]:
    try:
        delivery = subscription.take(10_000)
    except OSError:
        return []  # an injected fault of open; the session logs it and goes on
    if delivery is None:
        return []
    run = delivery.records
    ids = list(run.ids[delivery.start : delivery.stop])
    for row in range(delivery.start, delivery.stop):
        known = history.records.get(run.ids[row])
        assert known is None or known[:2] == (run.keys[row], run.payloads[row]), f"seed {history.seed}: a wrong delivery"
    again = [msg_id for msg_id in ids if msg_id in history.settled]
    assert not again, f"seed {history.seed}: {again} came again although their ack was on the disk"
    return ids


def ack(topic: Topic, msg_id: int, history: History, rng: random.Random) -> None:
    topic.ack(CONSUMER, [(msg_id, msg_id)])
    history.acked.add(msg_id)
    if rng.random() < 0.5:

        def flushed(error: object) -> None:
            if error is None and not history.moved:
                history.settled.add(msg_id)

        topic.flush_offsets(flushed)


def move(topic: Topic, history: History, rng: random.Random) -> None:
    """Move the consumer by SEEK or FORGET: both bring messages back on purpose, so earlier acks no longer count."""
    history.moved = True
    history.settled.clear()
    if rng.random() < 0.5 and CONSUMER in topic.consumers:
        topic.forget(CONSUMER)
    else:
        topic.seek(CONSUMER, rng.choice([Start("earliest"), Start("latest"), Start("id", topic.log.first_id)]))
