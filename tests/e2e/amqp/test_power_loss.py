"""Power cuts under the real process that speaks AMQP, on a file system that keeps no more than what was synced.

What a client was told is there afterwards: exchanges, queues and bindings behind their ``-ok``, messages behind their confirm
in each queue that they went to, transactions behind ``tx.commit-ok``, and a dead letter or the message that it was.
"""

import random
from pathlib import Path

import pytest

from tests.support.amqp_wire import AmqpWire, declare
from tests.support.broker_process import BrokerProcess
from tests.support.fuse_disk import FuseDisk
from tests.support.ports import reserved
from tests.support.requirements import require
from toymq import sync
from toymq_py.amqp.connection import Content
from toymq_py.amqp.methods import Method

pytestmark = require("fuse")

OPTIONS = ("--segment-bytes", "64KiB")
BURST = 40
EXCHANGE, QUEUES = "all", ("a", "b")
LIMITED = {"x-max-length": 5, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "letters"}


class Ledger:
    """What a broker has told its clients. Messages are named by their number."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.confirmed: set[bytes] = set()
        """Or committed: to all queues of the exchange."""
        self.limited: set[bytes] = set()
        """Confirmed, to the queue with a length, or its letters."""
        self.queues: set[str] = set()
        self._count = 0

    def body(self) -> bytes:
        self._count += 1
        return b"%d %b" % (self._count, self.rng.randbytes(self.rng.choice((0, 10, 700, 20_000))))

    def work(self, disk: FuseDisk, broker: BrokerProcess) -> None:
        """Declare, publish with confirms and in transactions, and cut the power in the middle."""
        with AmqpWire(broker.amqp) as wire:
            wire.login()
            wire.ask(1, "exchange.declare", exchange=EXCHANGE, type="fanout", durable=True)
            for name in (*QUEUES, "letters"):
                declare(wire, name)
            declare(wire, "limited", arguments=LIMITED)
            for name in QUEUES:
                wire.ask(1, "queue.bind", queue=name, exchange=EXCHANGE)
            wire.open(2)
            wire.ask(1, "confirm.select")
            wire.ask(2, "tx.select")
            for _ in range(self.rng.randrange(1, 4)):
                self._publish(wire, BURST)
                self._commit(wire)
            self._declare_one(wire)
            self._publish(wire, self.rng.randrange(BURST), then=disk)

    def _publish(self, wire: AmqpWire, stop_after: int, then: FuseDisk | None = None) -> None:
        """Publish a burst to the exchange and to the limited queue; cut the power when ``stop_after`` of it are confirmed."""
        waiting: dict[int, tuple[bytes, bool]] = {}
        for number in range(BURST):
            body, to_all = self.body(), self.rng.random() < 0.7
            wire.publish(body, "" if to_all else "limited", exchange=EXCHANGE if to_all else "")
            waiting[self._tag + number + 1] = body, to_all
        self._tag += BURST
        try:
            while waiting:
                if then is not None and BURST - len(waiting) >= stop_after:
                    then.cut()
                    then = None
                found = wire.event()
                assert isinstance(found, Method)
                for tag in [tag for tag in waiting if tag == found["delivery_tag"]
                            or (found["multiple"] and tag < found["delivery_tag"])]:  # fmt: skip
                    body, to_all = waiting.pop(tag)
                    if found.name == "basic.ack":
                        (self.confirmed if to_all else self.limited).add(body)
        except OSError:
            assert then is None, "the connection ended before the power was cut"

    def _commit(self, wire: AmqpWire) -> None:
        some = {self.body() for _ in range(5)}
        for body in some:
            wire.publish(body, "", exchange=EXCHANGE, channel=2)
        wire.ask(2, "tx.commit")
        self.confirmed |= some

    def _declare_one(self, wire: AmqpWire) -> None:
        name = f"q{len(self.queues)}"
        declare(wire, name)
        self.queues.add(name)

    def broken(self, broker: BrokerProcess) -> list[str]:
        """Return the promises that were not kept."""
        with AmqpWire(broker.amqp) as wire:
            wire.login()
            declared = (*QUEUES, "letters", "limited", *sorted(self.queues))
            if gone := [name for name in declared if not is_there(wire, name)]:
                return [f"{name} is gone" for name in gone]
            until_none_is_under_way(broker, "limited")
            found = [
                f"{len(missing)} confirmed are not in {name}" for name in QUEUES
                if (missing := self.confirmed - all_of(wire, name))
            ]  # fmt: skip
            if missing := self.limited - all_of(wire, "limited") - all_of(wire, "letters"):
                found.append(f"{len(missing)} confirmed are neither in limited nor in letters")
            wire.ask(1, "confirm.select")
            wire.publish(b"x", "", exchange=EXCHANGE, mandatory=True)
            if isinstance(wire.event(), Content):
                found.append("the exchange has no binding")
        self._tag = 0
        return found

    _tag = 0


def until_none_is_under_way(broker: BrokerProcess, queue: str) -> None:
    """Wait until no message that exceeds the limit after the start is on its way to the dead letters: meanwhile it is in
    neither of the two queues."""
    with sync.connect(f"toymq://127.0.0.1:{broker.port}") as client:
        while any(consumer["inflight"] for consumer in client.describe(queue)["consumers"]):
            pass


def is_there(wire: AmqpWire, queue: str) -> bool:
    wire.open(9)
    wire.send(9, "queue.declare", queue=queue, passive=True)
    found = wire.event()
    assert isinstance(found, Method)
    if found.name == "channel.close":
        wire.send(9, "channel.close-ok")
        return False
    close(wire)
    return True


def close(wire: AmqpWire) -> None:
    wire.ask(9, "channel.close", reply_code=200, reply_text="", class_id=0, method_id=0)


def all_of(wire: AmqpWire, queue: str) -> set[bytes]:
    """Return the messages of a queue, by getting them and giving them back."""
    wire.open(9)
    found = set()
    while True:
        wire.send(9, "basic.get", queue=queue)
        if not isinstance(got := wire.event(), Content):
            break
        found.add(got.body)
    close(wire)
    return found


def cut_and_look(path: Path, seed: int, cuts: int, *more: str) -> list[str]:
    """Cut the power up to ``cuts`` times. Returns: the promises that were broken; stops at the first cut that breaks one."""
    ledger = Ledger(random.Random(seed))
    path.mkdir()
    with reserved() as port, FuseDisk(path, seed) as disk:
        options = ("--amqp", f"127.0.0.1:{port}", *OPTIONS, *more)
        for _ in range(cuts):
            with BrokerProcess(path / "d", *options) as broker:
                ledger.work(disk, broker)
            disk.restore()
            with BrokerProcess(path / "d", *options) as broker:
                if broken := ledger.broken(broker):
                    return broken
    assert len(ledger.confirmed) > 20 * cuts
    assert len(ledger.limited) > 5 * cuts
    return []


def test_nothing_confirmed_is_lost(tmp_path: Path) -> None:
    assert cut_and_look(tmp_path / "disk", 1, 2) == []


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(2, 8))
def test_nothing_confirmed_is_lost_over_many_cuts(tmp_path: Path, seed: int) -> None:
    assert cut_and_look(tmp_path / "disk", seed, 15) == []


@pytest.mark.torture
def test_without_fsync_something_is_lost(tmp_path: Path) -> None:
    assert cut_and_look(tmp_path / "disk", 1, 6, "--fsync", "never"), "the test cannot fail"
