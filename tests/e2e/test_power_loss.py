"""Power cuts under the real process, on a file system that keeps no more than what was synced.

SIGKILL shows nothing of this: the page cache survives it. The file system is ``tests/support/fuse_disk.py``.
"""

import random
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess, Wire
from tests.support.fuse_disk import FuseDisk
from tests.support.requirements import require
from toymq import sync
from toymq_py.storage.record import iter_frames

pytestmark = require("fuse")

OPTIONS = ("--segment-bytes", "64KiB", "--retain-acked-for", "24h")


class Ledger:
    """What a broker has promised to its clients."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.published: dict[int, tuple[bytes, bytes]] = {}
        """Id to key and payload."""
        self.acked: set[int] = set()
        """With ``sync=1``, answered."""
        self._count = 0

    def work(self, disk: FuseDisk, broker: BrokerProcess) -> None:
        """Publish, consume and ack, and cut the power in the middle."""
        with broker.connect() as consumer, broker.connect() as publisher:
            consumer.send(b"SUB t c window=100000\n")
            for _ in range(self.rng.randrange(1, 6)):
                self._publish(publisher, stop_after=None)
                self._ack(consumer)
            consumer.send(b"".join(b"ACK t c %d sync=1\n" % msg_id for msg_id in range(3)))  # answered or not
            self._publish(publisher, stop_after=self.rng.randrange(30), then=disk)

    def _publish(self, wire: Wire, stop_after: int | None, then: FuseDisk | None = None) -> None:
        """Publish a burst; cut the power when ``stop_after`` of it are answered."""
        messages = []
        for _ in range(30):
            self._count += 1
            payload = self.rng.randbytes(self.rng.choice((0, 10, 700, 5000, 20_000)))
            messages.append((b"key-%d" % self._count, payload))
        wire.send(b"".join(b"PUB t %b %d\n%b\n" % (key, len(payload), payload) for key, payload in messages))
        for number, (key, payload) in enumerate(messages):
            if then is not None and number == stop_after:
                then.cut()
            try:
                answer = wire.line()
            except OSError:
                return
            if answer.startswith(b"OK"):
                self.published[int(answer.split()[1])] = (key, payload)

    def _ack(self, wire: Wire) -> None:
        """Ack some of what was delivered and wait for the disk."""
        seen = messages_until(wire, b"PING\n", b"PONG")
        for msg_id in self.rng.sample(seen, min(3, len(seen))):
            messages_until(wire, b"ACK t c %d sync=1\n" % msg_id, b"OK 1")
            self.acked.add(msg_id)

    def lost(self, broker: BrokerProcess) -> list[int]:
        """Return the broken promises: ids of messages that are gone, changed, or delivered again although acked."""
        found: dict[int, tuple[bytes, bytes]] = {}
        with sync.connect(f"toymq://127.0.0.1:{broker.port}") as client:
            if not client.topics():
                return sorted(self.published)
            at, end = client.offsets("t")
            while at < end:
                batch = client.fetch("t", at, 200)
                found.update({frame.msg_id: (frame.key, frame.payload) for frame in iter_frames(batch.frames)})
                at = batch.next_id
        with broker.connect() as wire:
            again = messages_until(wire, b"SUB t c window=100000\nPING\n", b"PONG")
        changed = [each for each, message in self.published.items() if found.get(each) != message]
        return sorted([*changed, *self.acked.intersection(again)])


def messages_until(wire: Wire, command: bytes, answer: bytes) -> list[int]:
    """Send a command and read to its answer; returns what was delivered before."""
    wire.send(command)
    seen = []
    while (line := wire.line()) != answer:
        assert line.startswith((b"MSG", b"OK")), line
        if line.startswith(b"MSG"):
            seen.append(int(line.split()[2]))
            wire.read(int(line.split()[6]) + 1)
    return seen


def cut_and_look(path: Path, seed: int, cuts: int, *options: str) -> int:
    """Cut the power up to ``cuts`` times. Returns: how many promises were broken; stops at the first cut that breaks one."""
    rng = random.Random(seed)
    ledger = Ledger(rng)
    path.mkdir()
    with FuseDisk(path, seed) as disk:
        for _ in range(cuts):
            with BrokerProcess(path / "d", *OPTIONS, *options) as broker:
                ledger.work(disk, broker)
            disk.restore()
            with BrokerProcess(path / "d", *OPTIONS, *options) as broker:
                if lost := ledger.lost(broker):
                    return len(lost)
    assert len(ledger.published) > 20 * cuts
    assert ledger.acked
    return 0


@pytest.mark.parametrize("mode", ["auto", "inline"])
def test_nothing_acknowledged_is_lost(tmp_path: Path, mode: str) -> None:
    assert cut_and_look(tmp_path / "disk", 1, 3, "--commit", mode) == 0


@pytest.mark.torture
def test_nothing_acknowledged_is_lost_in_a_hundred_cuts(tmp_path: Path) -> None:
    for seed in range(10):
        mode = "inline" if seed % 2 else "auto"
        assert cut_and_look(tmp_path / f"disk-{seed}", seed, 10, "--commit", mode) == 0, f"seed {seed}"


def test_without_fsync_something_is_lost(tmp_path: Path) -> None:
    assert cut_and_look(tmp_path / "disk", 1, 6, "--fsync", "never") > 0, "the test cannot fail"
