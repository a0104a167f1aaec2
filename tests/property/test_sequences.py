"""Producers that send ahead, are refused, lose their connections and their broker, and go on, against what they know.

Contract: protocol.md, "PUB ... seq="; delivery.md, "Dedupe". Whatever happens, every sequence that was answered OK or DUP is in
the log, once and in order. Only behind a hole, which a power cut may leave in a batch without an answer, may one be there
twice (ADR 0013).
"""

import errno
import math
import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulation.world import Killed, MortalDisk
from tests.support.broker_rig import DIR, BrokerRig
from tests.support.shares import examples
from toymq_py.net.fair_queue import Runnable
from toymq_py.protocol import ServerConnection
from toymq_py.session.deliveries import Deliveries
from toymq_py.session.handler import Handler
from toymq_py.session.replies import Replies
from toymq_py.storage.record import ATTRIBUTE_SEQUENCE, iter_frames

pytestmark = pytest.mark.usefixtures("without_log")

MAX_PAYLOAD = 400
NAMES = (b"p", b"q", b"long-name")
ROUNDS = 12
"""So often producers go back before they must have got through: each fault that is left costs one."""


class NeverRuns(Runnable):
    """A task that is never woken: the test takes the replies itself."""

    def __init__(self) -> None:
        pass

    def wake(self) -> None:
        pass


class Wire:
    """A connection, without the network."""

    def __init__(self, rig: BrokerRig) -> None:
        self._connection = ServerConnection(MAX_PAYLOAD)
        self._replies = Replies(rig.broker.metrics, NeverRuns(), rig.clock)
        unused: Deliveries = None  # type: ignore[assignment]
        self._handler = Handler(1, rig.broker, self._replies, unused, None)  # type: ignore[arg-type]
        self.sent: deque[tuple[bytes, int]] = deque()
        """Producer and sequence of what is not answered."""

    def send(self, data: bytes) -> None:
        self._connection.receive_data(data)
        while commands := self._connection.next_commands():
            for command in commands:
                self._handler.apply(command)

    def answers(self) -> list[tuple[bytes, int, bytes]]:
        """Return the producer, the sequence and the first word of each reply."""
        lines = b"".join(self._replies.take_due(math.inf)).splitlines()
        return [(*self.sent.popleft(), line.split(b" ")[0]) for line in lines]


class Producer:
    """Numbers its messages, with gaps, and goes back to the lowest one that was refused."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.made: list[int] = []
        self.stored: set[int] = set()
        self.back_to: int | None = None

    def make(self, count: int, gap: int) -> list[int]:
        first = self.made[-1] + 1 + gap if self.made else gap
        self.made += range(first, first + count)
        return self.made[-count:]

    def again(self) -> list[int]:
        back_to, self.back_to = self.back_to, None
        return [] if back_to is None else [n for n in self.made if n >= back_to and n not in self.stored]


class World:
    def __init__(self, segment_bytes: int) -> None:
        self.rig = BrokerRig(disk=MortalDisk(random.Random(segment_bytes)), segment_bytes=segment_bytes)
        self.producers = [Producer(name) for name in NAMES]
        self.wires = [Wire(self.rig) for _ in NAMES]
        self.holed = False

    def frame(self, producer: Producer, sequence: int, *, bad: int = 0) -> bytes:
        body = b"%b %d " % (producer.name, sequence)
        body += b"." * (sequence * 7 % 90)
        if bad == 1:
            body = bytes(MAX_PAYLOAD + 1)
        option = b"hdr=9999 " if bad == 2 else b"delay=1 " if bad == 3 else b"hdr=0 " if sequence % 11 == 5 else b""
        return b"PUB t %b %d %bseq=%d\n%b\n" % (producer.name, len(body), option, sequence, body)

    def send(self, which: int, sequences: list[int], bad_row: int = -1, bad: int = 0) -> None:
        producer, wire = self.producers[which], self.wires[which]
        wire.sent.extend((producer.name, sequence) for sequence in sequences)
        wire.send(
            b"".join(self.frame(producer, n, bad=bad if row == bad_row else 0) for row, n in enumerate(sequences))
        )

    def listen(self, which: int) -> None:
        producer = self.producers[which]
        for name, sequence, word in self.wires[which].answers():
            assert name == producer.name
            if word in (b"OK", b"DUP"):
                producer.stored.add(sequence)
            else:
                assert word == b"ERR"
                producer.back_to = min(sequence, sequence if producer.back_to is None else producer.back_to)

    def reconnect(self, which: int) -> None:
        producer, lost = self.producers[which], self.wires[which].sent
        self.wires[which] = Wire(self.rig)
        unanswered = [sequence for _, sequence in lost]
        if producer.back_to is not None:
            unanswered.append(producer.back_to)
        producer.back_to = min(unanswered, default=None)

    def restart(self, *, power_cut: bool, sidecars: bool = True) -> None:
        self.rig.disk.heal()
        self.rig.disk = self.rig.disk.crash() if power_cut else self.rig.disk.kill()
        if not sidecars:
            for name in [name for name in self.rig.files("t") if name.endswith(".idx")]:
                self.rig.disk.unlink(f"{DIR}/topics/t/{name}")
        self.rig.restart()
        for which in range(len(NAMES)):
            self.reconnect(which)
        topic = self.rig.broker.topics.get("t")
        self.holed = self.holed or (topic is not None and bool(topic.log.lost))

    def do(self, verb: str, number: int) -> None:
        try:
            self._do(verb, number)
        except Killed:
            self.restart(power_cut=number % 4 > 0)

    def _do(self, verb: str, number: int) -> None:
        rig, (which, rest) = self.rig, (number % 3, number // 3)
        match verb:
            case "send":
                self.send(which, self.producers[which].again())
                self.send(which, self.producers[which].make(1 + rest % 12, rest % 5 // 3))
            case "send bad":
                self.send(which, self.producers[which].again())
                self.send(which, self.producers[which].make(1 + rest % 5, 0), rest % 7, 1 + rest % 3)
            case "step":
                for _ in range(1 + rest % 4):
                    rig.loop.step()
            case "listen":
                if rest % 2:
                    rig.loop.drain()
                self.listen(which)
            case "full":
                rig.disk.fail("pwrite", 1 + rest % 3, errno.ENOSPC, path=".log")
            case "fails":
                rig.disk.fail("sync", 1 + rest % 3, errno.EIO, path=".log")
            case "low":
                rig.broker.space.refuse()
            case "wait":
                rig.advance(0.2)
            case "reconnect":
                self.reconnect(which)
            case "die":  # the next time that so many syncs have begun
                disk = rig.disk
                assert isinstance(disk, MortalDisk)
                disk.dies_on, disk.dies_after, disk.mortal = ("sync", ".log"), rest % 3, True
            case "stop":
                rig.loop.drain()
                rig.broker.close()
                self.restart(power_cut=False)
            case _:
                self.restart(power_cut=verb == "power cut", sidecars=bool(rest % 2))

    def log(self) -> dict[bytes, list[int]]:
        """The sequences of each producer as they stand in the log."""
        found: dict[bytes, list[int]] = {name: [] for name in NAMES}
        log = self.rig.broker.topics["t"].log
        at = log.first_id
        while at < log.committed_id:
            data, _, at = log.read_frames(at, 1000, 1 << 20)
            for frame in iter_frames(data):
                sequence = frame.number(ATTRIBUTE_SEQUENCE)
                assert sequence is not None
                assert frame.payload.startswith(b"%b %d " % (frame.key, sequence))
                found[frame.key].append(sequence)
        return found

    def check(self, *, whole: bool) -> None:
        for producer, (_, stored) in zip(self.producers, self.log().items(), strict=True):
            assert producer.stored <= set(stored), "what was answered OK or DUP is in the log"
            assert set(stored) <= set(producer.made)
            if not self.holed:
                assert stored == sorted(set(stored)), "once, and in order"
            if whole:
                assert set(stored) == set(producer.made)

    def get_through(self) -> None:
        """End the faults, and let every producer send what it has left."""
        self.restart(power_cut=False)
        for _ in range(ROUNDS):
            self.rig.advance(0.3)
            topic = self.rig.broker.topics.get("t")
            if topic is not None and topic.committer.failed is not None:
                self.restart(power_cut=False)
            for which, producer in enumerate(self.producers):
                self.listen(which)
                if producer.back_to is None and len(producer.stored) < len(producer.made):
                    self.reconnect(which)
                self.send(which, producer.again())
            self.rig.loop.drain()
            for which in range(len(NAMES)):
                self.listen(which)
            if all(producer.stored == set(producer.made) for producer in self.producers):
                return
        raise AssertionError("a producer does not get through")


verbs = st.sampled_from(
    ["send"] * 8
    + ["send bad", "step", "listen", "listen", "full", "fails", "low", "wait", "reconnect", "stop", "kill", "power cut", "die"]
)


@given(
    st.lists(st.tuples(verbs, st.integers(0, 1 << 12)), min_size=20, max_size=80),
    st.sampled_from((4096, 16_384)),
)
@settings(max_examples=examples(60), deadline=None)
def test_each_sequence_is_stored_once_and_in_order(steps: list[tuple[str, int]], segment_bytes: int) -> None:
    world = World(segment_bytes)
    world.do("send", 0)
    for verb, number in steps:
        world.do(verb, number)
        if verb in ("kill", "power cut", "stop", "die") and "t" in world.rig.broker.topics:
            world.check(whole=False)
    world.get_through()
    world.check(whole=True)
    before = world.log()
    for power_cut in (False, True):
        world.restart(power_cut=power_cut, sidecars=not power_cut)
        for which, producer in enumerate(world.producers):
            world.send(which, producer.made)
        world.rig.loop.drain()
        words = {word for wire in world.wires for _, _, word in wire.answers()}
        assert words <= {b"DUP"} or world.holed, "all of it again: nothing is new"
        if not world.holed:
            assert world.log() == before


def test_space_that_comes_back_lets_nobody_overtake() -> None:
    """The broker refuses a message at once for lack of space. The messages behind it are refused, too, even when there would be
    room for them again, so none overtakes it."""
    world = World(4096)
    world.do("send", 0)
    world.do("listen", 3)
    world.do("low", 0)
    world.send(0, world.producers[0].make(2, 0))
    world.do("wait", 0)
    world.send(0, world.producers[0].make(1, 0))
    world.rig.loop.drain()
    assert [(sequence, word) for _, sequence, word in world.wires[0].answers()] == [(n, b"ERR") for n in (1, 2, 3)]
    world.send(0, [1, 2, 3])
    world.rig.loop.drain()
    assert [(sequence, word) for _, sequence, word in world.wires[0].answers()] == [(n, b"OK") for n in (1, 2, 3)]
