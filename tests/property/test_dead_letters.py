"""Workers that fail, dead letters, REDRIVE, kills, power cuts and full disks, in any order, against what each worker saw.

Contract: delivery.md, "Attempts". Two consumers of one topic. Whatever happens: a message that a consumer has given up becomes
one dead letter, a letter goes back once and only to the consumer that failed it, no attempt is above the limit, and in the end
every message of each consumer is acked or a letter.
"""

import errno
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulation.world import Killed, MortalDisk
from tests.support.broker_rig import BrokerRig
from toymq_py.errors import NoSuchTopic
from toymq_py.failure import failure_of
from toymq_py.topic import Subscription

pytestmark = pytest.mark.usefixtures("without_log")

MAX_ATTEMPTS = 3
CONSUMERS = ("a", "b")
VERBS = ("publish", "take", "take", "take", "nack", "nack", "dead", "ack", "step", "step", "wait", "wait", "leave", "redrive",
         "die", "kill", "power cut", "full", "fails", "heal")  # fmt: skip


class Life:
    """A data directory, and what its clients know of it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.rig = BrokerRig(
            disk=MortalDisk(self.rng), max_attempts=MAX_ATTEMPTS, segment_bytes=4096, dedupe_keys=self.rng.choice([5, 65_536])
        )
        self.subs: dict[str, Subscription] = {}
        self.inflight: dict[str, set[int]] = {name: set() for name in CONSUMERS}
        self.seen: Counter[str] = Counter()
        for name in CONSUMERS:
            self.subscribe(name)
            self.rig.flush("t")

    def subscribe(self, name: str) -> Subscription:
        sub = self.subs.get(name)
        if sub is None or sub.closed:
            sub = self.subs[name] = self.rig.subscribe("t", name, window=8, visibility_s=self.rng.choice([0.3, 30]))
        return sub

    def restart(self, *, power_cut: bool) -> None:
        self.seen["a kill"] += 1
        self.rig.disk.heal()
        self.rig.reopen(power_cut=power_cut)
        self.subs.clear()
        for held in self.inflight.values():
            held.clear()

    def take(self, name: str) -> None:
        delivery = self.subscribe(name).take(1 << 20)
        if delivery is None:
            return
        assert delivery.attempt <= MAX_ATTEMPTS, "never one attempt too many"
        records = delivery.records
        for row in range(delivery.start, delivery.stop):
            block = b"" if records.headers is None else records.headers[row]
            if b"toymq-redrive-consumer: " in block:
                self.seen["a redriven message"] += 1
                assert b"toymq-redrive-consumer: %b\n" % name.encode() in block, "seen by the one that failed it alone"
            self.inflight[name].add(records.ids[row])

    def pick(self, name: str) -> list[tuple[int, int]]:
        first = self.rng.choice(sorted(self.inflight[name]) or [0])
        last = first + self.rng.randrange(3)
        self.inflight[name] -= set(range(first, last + 1))
        return [(first, last)]

    def do(self, verb: str, number: int) -> None:
        try:
            self._do(verb, number)
        except Killed:
            self.restart(power_cut=number % 2 > 0)

    def _do(self, verb: str, number: int) -> None:
        rig, name = self.rig, CONSUMERS[number % 2]
        topic = rig.broker.topic_or_new("t")
        match verb:
            case "publish":
                for row in range(1 + number % 4):
                    block = b"a: b\n" if row % 2 else b""
                    topic.publisher.publish([b""], [b"x" * (number % 900)], [block])
            case "take":
                self.take(name)
            case "nack":
                topic.nack(name, self.pick(name), self.rng.choice([None, 0.0, 0.2]))
            case "dead":
                self.seen["given up"] += topic.nack(name, self.pick(name), None, dead=True, failure=failure_of("bad"))
            case "ack":
                topic.ack(name, self.pick(name))
            case "step":
                for _ in range(number % 5):
                    rig.loop.step()
            case "wait":
                rig.advance(self.rng.choice([0, 0.2, 0.4]))
            case "leave":
                self.subscribe(name).close()
                self.inflight[name].clear()
            case "redrive":
                try:
                    rig.broker.redrive("t.dlq", None, self.rng.choice([None, 1, 3]), self.redriven)
                except NoSuchTopic:
                    return
            case "die":  # at that call to the disk
                disk = rig.disk
                assert isinstance(disk, MortalDisk)
                disk.dies_after, disk.mortal = number % 9, True
            case "full":
                rig.disk.fail("pwrite", 1 + number % 2, errno.ENOSPC, path=self.rng.choice(["t.dlq", "/t/", "offsets"]))
            case "fails":
                rig.disk.fail("sync", 1 + number % 2, errno.EIO, path=self.rng.choice(["t.dlq", "/t/"]))
            case "heal":
                rig.disk.heal()
            case _:
                self.restart(power_cut=verb == "power cut")

    def redriven(self, count: int, error: object) -> None:
        self.seen["a refused REDRIVE"] += error is not None

    def check(self) -> None:
        """Check that there is at most one dead letter per message and consumer, and at most one redriven record per letter."""
        rig = self.rig
        back = Counter(key for _, key, _, _ in rig.records("t") if key.startswith(b"redrive:"))
        assert all(count == 1 for count in back.values()), "a letter went back twice"
        if "t.dlq" in rig.broker.topics:
            found = Counter((h["toymq-consumer"], h["toymq-origin-id"]) for *_, h in rig.records("t.dlq"))
            assert all(count == 1 for count in found.values()), f"two letters of one message: {found}"

    def drain(self) -> None:
        """Let each consumer fail all remaining messages until they are dead letters; then redrive all letters and ack them."""
        rig = self.rig
        self.restart(power_cut=False)
        for _ in range(2 * MAX_ATTEMPTS):
            for name in CONSUMERS:
                while (delivery := self.subscribe(name).take(1 << 20)) is not None:
                    rig.nack("t", delivery.first_id, delivery.last_id, name)
            rig.advance(31)
        self.check()
        topic = rig.broker.topic("t")
        assert {it["backlog"] for it in topic.describe()["consumers"]} == {0}
        if "t.dlq" not in rig.broker.topics:
            return
        letters = len(rig.records("t.dlq"))
        before = {key for _, key, _, _ in rig.records("t") if key.startswith(b"redrive:")}
        self.seen["letters"] += letters
        assert rig.redrive("t.dlq")[1] is None
        assert len({key for _, key, _, _ in rig.records("t") if key.startswith(b"redrive:")} | before) == letters
        self.check()
        for name in CONSUMERS:
            self.take(name)
        assert rig.redrive("t.dlq") == (0, None)


SEEN: Counter[str] = Counter()


@settings(max_examples=90, derandomize=True, deadline=None, database=None)
@given(
    seed=st.integers(0, 1 << 30),
    steps=st.lists(st.tuples(st.sampled_from(VERBS), st.integers(0, 99)), min_size=30, max_size=80),
)
def every_message_is_acked_or_one_letter(seed: int, steps: list[tuple[str, int]]) -> None:
    life = Life(seed)
    for verb, number in steps:
        life.do(verb, number)
    life.drain()
    SEEN.update(life.seen)


def test_every_message_is_acked_or_one_letter() -> None:
    SEEN.clear()
    every_message_is_acked_or_one_letter()
    wanted = ("a kill", "a redriven message", "given up", "letters")
    assert min(SEEN[what] for what in wanted) > 20, f"expected each often, saw {SEEN}"
    assert SEEN["a refused REDRIVE"], "expected one at least"
