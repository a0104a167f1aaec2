"""``toymq demo``: show the delivery promises on a real file with real kills."""

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import click

from toymq import RequestTimeout, sync
from toymq.broker_process import TOYMQ_WITH_PARENT, BrokerProcess
from toymq_py.build import docs_directory

TOPIC = "demo"
CONSUMER = "reader"
WINDOW = 64
SILENCE_S = 30.0
"""How long no message comes, though more are due, before the demo says that they are lost."""


@contextmanager
def running_broker() -> Iterator[BrokerProcess]:
    """Run a broker for the demo on a free port; it can be killed. Raises: StartFailed."""
    with (
        tempfile.TemporaryDirectory(prefix="toymq-demo-", ignore_cleanup_errors=True) as directory,
        BrokerProcess(
            Path(directory) / "data", "--min-free-bytes", "0", "--log-level", "error", program=TOYMQ_WITH_PARENT
        ) as broker,
    ):
        yield broker


@dataclass
class Ledger:
    """What the demo published and received, and the check that it keeps the promises."""

    lines: list[bytes]
    ids: dict[int, int] = field(default_factory=dict)
    """Line number to message id, as the broker acknowledged it."""
    seen: dict[int, bytes] = field(default_factory=dict)
    """Message id to payload, as it was delivered."""
    again: set[int] = field(default_factory=set)
    """Ids that were delivered a second time after they had been acked."""
    settled: set[int] = field(default_factory=set)
    """Ids whose ack was on stable storage before the kill: these must never come again."""
    after: int = 0
    """Deliveries after the last restart, when everything was acked: there must be none."""
    broken: list[str] = field(default_factory=list)

    def judge(self) -> None:
        """Compare what was published with what was received, and fill ``broken``."""
        lost = [line for line, msg_id in self.ids.items() if self.seen.get(msg_id) != self.lines[line]]
        if len(self.ids) != len(self.lines):
            self.broken.append(f"{len(self.lines) - len(self.ids)} lines were never acknowledged")
        if lost:
            self.broken.append(f"{len(lost)} acknowledged lines were lost or changed, the first is line {lost[0] + 1}")
        if len(set(self.ids.values())) != len(self.ids):
            self.broken.append("two lines were given one id")
        if unexpected := set(self.seen) - set(self.ids.values()):
            self.broken.append(f"{len(unexpected)} messages came that were never published")
        if came_back := self.again & self.settled:
            self.broken.append(f"{len(came_back)} messages came back although their ack was on the disk")
        if self.after:
            self.broken.append(f"{self.after} acked messages were delivered after the last restart")

    def digest(self) -> tuple[str, str]:
        """SHA-256 of the published messages, and of the received ones in the order of ids."""
        came = hashlib.sha256(b"\n".join(self.seen[msg_id] for msg_id in sorted(self.seen))).hexdigest()
        return hashlib.sha256(b"\n".join(self.lines)).hexdigest(), came


def publish(broker: BrokerProcess, ledger: Ledger, kill_at: int | None) -> int:
    """Publish every line that has no receipt yet, in order; kill the broker after ``kill_at`` receipts.

    Every line has its own key, so that publishing the lines in flight again makes no second copy.

    Returns: how many were answered DUP: on the disk already, though their OK was lost.
    """
    todo = [number for number in range(len(ledger.lines)) if number not in ledger.ids]
    duplicates = 0
    with sync.connect(broker.url) as client:
        items = [(b"line-%d" % number, ledger.lines[number]) for number in todo]
        for number, receipt in zip(todo, client.pub_many(TOPIC, items, window=WINDOW), strict=False):
            ledger.ids[number] = receipt.msg_id
            duplicates += receipt.duplicate
            if kill_at is not None and len(ledger.ids) == kill_at:
                broker.kill()
                client.close()  # it would publish the rest by itself; this shows that nothing is lost without it, too
                break
    return duplicates


def until(subscription: sync.Subscription, last: int) -> Iterator[sync.Message]:
    """The messages received up to the one with the id ``last``. They come in the order of their ids: none of the earlier ones
    is on its way behind it. Ends early when none came for ``SILENCE_S``."""
    with suppress(RequestTimeout):
        while True:
            message = subscription.next(SILENCE_S)
            yield message
            if message.id == last:
                return


def consume(broker: BrokerProcess, ledger: Ledger, count: int | None) -> None:
    """Take and ack ``count`` messages and await their acks, then as many more without awaiting; None: all up to the last one,
    and await that."""
    acked, last = set(ledger.seen), max(ledger.ids.values())
    with sync.connect(broker.url) as client:
        subscription = client.sub(TOPIC, CONSUMER, window=WINDOW)
        for message in until(subscription, last):
            ledger.seen[message.id] = message.payload
            if message.id in acked:
                ledger.again.add(message.id)
            acked.add(message.id)
            stored = len(acked) == count or (count is None and message.id == last)
            client.ack(TOPIC, CONSUMER, [(message.id, message.id)], sync=stored)
            if len(acked) == count:
                ledger.settled = set(acked)
            if count is not None and len(acked) >= 2 * count:
                broker.kill()
                client.close()
                return


@click.command(short_help="Publish a file, kill the broker, compare what comes out.")
@click.option(
    "--file",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    default=lambda: docs_directory() / "delivery-guarantees.md",
    show_default="a page of `toymq help`",
    help="Every line of it becomes a message.",
)
def demo(path: Path) -> None:
    """Show that nothing is lost: publish a file, kill the broker, look again.

    Starts a broker on a free port, publishes every line of a file, kills the broker with SIGKILL in the middle, restarts it,
    goes on, consumes and acks everything with another kill in the middle, and restarts once more. Exit code 0 when every
    promise was kept, 1 when one was broken.
    """
    ledger = Ledger(path.read_bytes().splitlines())
    if len(ledger.lines) < 4:
        raise click.UsageError(f"{path} has fewer than 4 lines, too few to kill a broker in the middle: name a longer file")
    total = len(ledger.lines)
    click.echo(f"{path}: {total} lines, one message each")
    with running_broker() as broker:
        publish(broker, ledger, kill_at=total // 2)
        click.echo(f"  published {len(ledger.ids)}, then SIGKILL with up to {WINDOW} in flight")
        broker.start()
        duplicates = publish(broker, ledger, kill_at=None)
        click.echo(f"  restarted, published the rest; {duplicates} of these lines were on the disk already (DUP, no copy)")
        broker.restart()
        consume(broker, ledger, count=total // 4)
        click.echo(f"  consumed and acked {len(ledger.seen)}, then SIGKILL")
        broker.start()
        consume(broker, ledger, count=None)
        click.echo(f"  restarted, consumed the rest: {len(ledger.again)} came again (acks of the last 100 ms before the kill)")
        broker.restart()
        before = len(ledger.seen)
        ledger.after = count_deliveries(broker)
        click.echo(f"  restarted once more: {ledger.after} deliveries, as everything is acked")
    ledger.judge()
    went_in, came_out = ledger.digest()
    click.echo(f"published {len(ledger.ids)}, consumed {before}, lost {total - before}")
    click.echo(f"sha256 in  {went_in}\nsha256 out {came_out}")
    if went_in != came_out and not ledger.broken:
        ledger.broken.append("what came out is not what went in")
    for promise in ledger.broken:
        click.echo(f"BROKEN: {promise}", err=True)
    if ledger.broken:
        raise SystemExit(1)
    click.echo("every promise was kept")


def count_deliveries(broker: BrokerProcess) -> int:
    """The number of messages delivered to the same consumer ahead of one that is published now; none should come."""
    with sync.connect(broker.url) as client:
        subscription = client.sub(TOPIC, CONSUMER)
        marker = client.pub(TOPIC, b"nothing is due before this").msg_id
        return sum(message.id != marker for message in until(subscription, marker))
