"""``toymqctl pub``: publishes payloads, or the lines of a file or of stdin."""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import click

from toymq import Receipt
from toymq.click_support import Duration
from toymq.message import Item
from toymq_py.errors import RequestError
from toymq_py.partitions import number_of
from toymq_py.records import PAYLOAD_BYTES_LIMIT
from toymqctl.broker import Broker
from toymqctl.input_lines import Copies, Input, InputLines
from toymqctl.late_answers import LateAnswers, partitions_of, publishes_of
from toymqctl.partitions import dealer
from toymqctl.quantities import TOPIC

Publish = Callable[[Iterable[Item]], Iterable[str]]
"""Publishes items, and yields where each is."""


@click.command(short_help="Publish payloads, or the lines of a file or of stdin.")
@click.argument("topic", type=TOPIC)
@click.argument("payloads", nargs=-1)
@click.option("--key", help="Dedupe key of a single payload: the broker answers DUP to a repeat.")
@click.option("--route", help="Of a partitioned topic: what has the same route goes to the same partition.")
@click.option("--header", "header_lines", multiple=True, metavar="NAME:VALUE", help="Header of each message; repeatable.")
@click.option("--delay", "delay_s", type=Duration(), help="Deliver after this time: 5s, 2h, 30d.")
@click.option("--ttl", "ttl_s", type=Duration(), help="Drop it when it is not delivered by then: 1d.")
@click.option("--file", "path", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Publish this file's lines.")
@click.option("--count", type=click.IntRange(1), default=1, help="Publish the PAYLOAD so many times.")
@click.option("--whole", is_flag=True, help="Publish the whole file, or all of stdin, as one message.")
@click.option(
    "--no-dedupe", is_flag=True, help="For a topic with dedupe_keys=0: what has no answer when the connection is lost "
    "is an error, and is not repeated."
)  # fmt: skip
@click.pass_obj
def pub(
    broker: Broker,
    topic: str,
    payloads: tuple[str, ...],
    key: str | None,
    route: str | None,
    header_lines: tuple[str, ...],
    delay_s: float | None,
    ttl_s: float | None,
    path: Path | None,
    count: int,
    whole: bool,
    no_dedupe: bool,
) -> None:
    """Publish to TOPIC: a message for each PAYLOAD, or for every line of --file or of stdin. Quote a PAYLOAD of several words.

    \b
        toymqctl pub orders '{"id": 17}' --key order-17
        toymqctl pub logs --file /var/log/syslog
        tail -f /var/log/syslog | toymqctl pub logs
        toymqctl pub pictures --file cat.png --whole
        toymqctl pub reminders 'call back' --delay 2h --ttl 1d
        toymqctl pub load '{"test": true}' --count 10000

    Prints `OK <id>` for each payload, or a count at the end of a stream. What is printed is on the disk. If the token may
    subscribe to a partitioned topic, the partition stands behind the id, `OK 17 TOPIC#3`, or the count says how many in each.

    Lines are published as they come. Ctrl-C stops after the lines that were read, or with --count after the messages that were
    sent; a second Ctrl-C does not wait for the broker.
    """
    if payloads and (path is not None or whole):
        raise click.UsageError(f"PAYLOAD and {'--whole' if path is None else '--file'} exclude each other")
    if key is not None and len(payloads) != 1 and not whole:
        raise click.UsageError("--key goes with exactly one PAYLOAD, or with --whole")
    if header_lines and not payloads and not whole:
        raise click.UsageError("--header goes with PAYLOAD or --whole")
    if route is not None and not payloads and not whole:
        raise click.UsageError("--route goes with PAYLOAD or --whole")
    if count > 1 and (len(payloads) != 1 or key is not None or route is not None):
        raise click.UsageError(
            "--count goes with exactly one PAYLOAD, and not with --key, which makes repeats duplicates, or --route"
        )
    if ttl_s == 0:
        raise click.UsageError("with --ttl 0 nothing would be delivered: leave it out for no limit")
    headers = _headers(header_lines)

    def one(payload: bytes) -> None:
        name = topic if parts is None else parts.choose(key, route, headers)
        at = route if parts is None else None
        with late.waiting(name):
            receipt = client.pub(name, payload, key=key, headers=headers, delay=delay_s, ttl=ttl_s, route=at)
        _say(receipt, "" if parts is None else f" {name}")

    def many(items: Iterable[Item]) -> Iterator[str]:
        if parts is not None:
            return late.each(topic, parts.publish_many(client, items, headers, delay=delay_s, ttl=ttl_s))
        return late.each(topic, (topic for _ in client.pub_many(topic, items, delay=delay_s, ttl=ttl_s)))

    def stream(source: BinaryIO, size: int | None) -> None:
        progress = click.progressbar(length=size or 0, label=f"publishing to {topic}", file=sys.stderr, hidden=size is None)
        with progress as bar:
            _publish(many, topic, InputLines(source, bar.update))

    with broker.connect(idempotent=not no_dedupe) as client, LateAnswers(publishes_of(client)) as late:
        with late.waiting(topic, partitions_of):
            parts = dealer(client, topic)
        if count > 1:
            message = payloads[0].encode(errors="surrogateescape")
            _publish(many, topic, Copies((None, message, headers), count))
        elif payloads:
            if len(payloads) > 1 and sys.stderr.isatty():
                each = "one for each PAYLOAD: quotes make one of several words"
                click.echo(f"toymqctl: {len(payloads)} messages, {each}", err=True)
            for payload in payloads:
                one(payload.encode(errors="surrogateescape"))
        elif path is not None:
            with path.open("rb") as file:
                if whole:
                    one(_all_of(file))
                else:
                    stream(file, path.stat().st_size)
        elif whole:
            one(_all_of(sys.stdin.buffer))
        elif sys.stdin.isatty():
            click.echo("publishing every line you type; end with Ctrl-D", err=True)
            for line in sys.stdin.buffer:
                one(line.removesuffix(b"\n"))
        else:
            stream(sys.stdin.buffer, None)


def _say(receipt: Receipt, where: str = "") -> None:
    click.echo(f"{'DUP' if receipt.duplicate else 'OK'} {receipt.msg_id}{where}")


def _say_published(topic: str, counts: Counter[str]) -> None:
    """Print how many messages were published, and how many to each partition."""
    parts = sorted((number, name) for name in counts if (number := number_of(name)) is not None and name != topic)
    each = ", ".join(f"{name} {counts[name]}" for _, name in parts)
    click.echo(f"published {counts.total()}" + (f": {each}" if each else ""))


def _headers(lines: tuple[str, ...]) -> dict[str, str] | None:
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name:
            raise click.UsageError(f"invalid header {line!r}: write NAME:VALUE")
        if name in headers:
            raise click.UsageError(f"the header {name} is given twice: give it once")
        headers[name] = value.removeprefix(" ")
    return headers or None


def _all_of(stream: BinaryIO) -> bytes:
    """Read all bytes, at most one more than any broker takes: so a payload that is too large is refused and not cut."""
    return stream.read(PAYLOAD_BYTES_LIMIT + 1)


def _publish(publish: Publish, topic: str, source: Input) -> None:
    """Publish the input as it comes, in bursts of what is at hand. At the end, even by an error, print how many messages the
    broker has acknowledged."""
    counts: Counter[str] = Counter()
    try:
        with source.kept_on_interrupt():
            while source.wait():
                for name in publish(source.burst()):
                    counts[name] += 1
    finally:
        _say_published(topic, counts)
        _say_what_is_open(source, counts.total(), sys.exception())


def _say_what_is_open(source: Input, count: int, error: BaseException | None) -> None:
    """Say what became of input that was read but is not counted as acknowledged. After a refusal, the refused line is the next
    one."""
    if source.count > count and not isinstance(error, RequestError):
        click.echo(f"toymqctl: the outcome of the next {source.count - count} {source.called} is unknown", err=True)
    if source.incomplete_bytes and isinstance(error, KeyboardInterrupt):
        click.echo(f"toymqctl: not published: the last {source.incomplete_bytes} bytes, which no newline ends", err=True)
