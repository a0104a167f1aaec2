"""``toymqctl pub``."""

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import click

from toymq import Receipt
from toymq.click_support import Duration
from toymq_py.records import PAYLOAD_BYTES_LIMIT
from toymqctl.broker import Broker
from toymqctl.quantities import TOPIC

Publish = Callable[[Iterable[bytes]], Iterable[Receipt]]


def lines_of(stream: Iterable[bytes]) -> Iterator[bytes]:
    """Lines without their newline."""
    for line in stream:
        yield line.removesuffix(b"\n")


@click.command()
@click.argument("topic", type=TOPIC)
@click.argument("payloads", nargs=-1)
@click.option("--key", help="Dedupe key of a single payload: the broker answers DUP to a repeat.")
@click.option("--header", "header_lines", multiple=True, metavar="NAME:VALUE", help="Header of each message; repeatable.")
@click.option("--delay", "delay_s", type=Duration(), help="Deliver after this time: 5s, 2h, 30d.")
@click.option("--ttl", "ttl_s", type=Duration(), help="Drop after this time: 1d.")
@click.option("--file", "path", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Publish this file's lines.")
@click.option("--whole", is_flag=True, help="Publish the whole file, or all of stdin, as one message.")
@click.pass_obj
def pub(
    broker: Broker,
    topic: str,
    payloads: tuple[str, ...],
    key: str | None,
    header_lines: tuple[str, ...],
    delay_s: float | None,
    ttl_s: float | None,
    path: Path | None,
    whole: bool,
) -> None:
    """Publish to TOPIC: each PAYLOAD, or every line of --file or of stdin.

    \b
        toymqctl pub orders '{"id": 17}' --key order-17
        toymqctl pub logs --file /var/log/syslog
        toymqctl pub pictures --file cat.png --whole
        toymqctl pub reminders 'call back' --delay 2h --ttl 1d

    Prints `OK <id>` for each payload, or one line at the end of a stream. A printed message is on the disk.
    """
    if payloads and (path is not None or whole):
        raise click.UsageError(f"PAYLOAD and {'--whole' if path is None else '--file'} exclude each other")
    if key is not None and len(payloads) != 1 and not whole:
        raise click.UsageError("--key goes with exactly one PAYLOAD, or with --whole")
    if header_lines and not payloads and not whole:
        raise click.UsageError("--header goes with PAYLOAD or --whole")
    if ttl_s == 0:
        raise click.UsageError("with --ttl 0 nothing would be delivered: leave it out for no limit")
    headers = _headers(header_lines)

    def one(payload: bytes) -> None:
        _say(client.pub(topic, payload, key=key, headers=headers, delay=delay_s, ttl=ttl_s))

    def stream(lines: Iterable[bytes], size: int | None) -> None:
        _publish(lambda items: client.pub_many(topic, items, delay=delay_s, ttl=ttl_s), topic, lines, size)

    with broker.connect() as client:
        if payloads:
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
            for line in lines_of(sys.stdin.buffer):
                one(line)
        else:
            stream(sys.stdin.buffer, None)


def _say(receipt: Receipt) -> None:
    click.echo(f"{'DUP' if receipt.duplicate else 'OK'} {receipt.msg_id}")


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
    """Read as much as any broker takes and a byte more, so that what is too large is refused and not cut."""
    return stream.read(PAYLOAD_BYTES_LIMIT + 1)


def _publish(publish: Publish, topic: str, stream: Iterable[bytes], size: int | None) -> None:
    count = 0
    try:
        with click.progressbar(length=size or 0, label=f"publishing to {topic}", file=sys.stderr, hidden=size is None) as bar:

            def counted() -> Iterator[bytes]:
                for line in lines_of(stream):
                    yield line
                    if size is not None:
                        bar.update(len(line) + 1)

            for _ in publish(counted()):
                count += 1
    finally:  # also when a line was refused: it is the next one
        click.echo(f"published {count}")
