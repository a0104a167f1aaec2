"""``toymqctl pub``."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import click

from toymq_client import Receipt, sync
from toymq_py.model import PAYLOAD_BYTES_LIMIT
from toymqctl.broker import Broker
from toymqctl.quantities import TOPIC


def lines_of(stream: Iterable[bytes]) -> Iterator[bytes]:
    """Lines without their newline."""
    for line in stream:
        yield line.removesuffix(b"\n")


@click.command()
@click.argument("topic", type=TOPIC)
@click.argument("payloads", nargs=-1)
@click.option("--key", help="Dedupe key, for a single payload: publishing it again answers DUP.")
@click.option("--header", "header_lines", multiple=True, metavar="NAME:VALUE", help="Goes with a payload; may be repeated.")
@click.option("--file", "path", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Publish its lines.")
@click.option("--whole", is_flag=True, help="The file, or all of stdin, is one message.")
@click.pass_obj
def pub(
    broker: Broker,
    topic: str,
    payloads: tuple[str, ...],
    key: str | None,
    header_lines: tuple[str, ...],
    path: Path | None,
    whole: bool,
) -> None:
    """Publish to TOPIC: each PAYLOAD, or every line of --file or of stdin.

    \b
        toymqctl pub orders '{"id": 17}' --key order-17
        toymqctl pub logs --file /var/log/syslog
        toymqctl pub pictures --file cat.png --whole

    Prints `OK <id>` for each payload, and one line at the end for a stream. When it prints, the message is on the disk.
    """
    if payloads and (path is not None or whole):
        raise click.UsageError(f"PAYLOAD and {'--whole' if path is None else '--file'} exclude each other")
    if key is not None and len(payloads) != 1 and not whole:
        raise click.UsageError("--key goes with exactly one PAYLOAD, or with --whole")
    if header_lines and not payloads and not whole:
        raise click.UsageError("--header goes with PAYLOAD or --whole")
    headers = _headers(header_lines)
    with broker.connect() as client:
        if payloads:
            for payload in payloads:
                _say(client.pub(topic, payload.encode(errors="surrogateescape"), key=key, headers=headers))
        elif path is not None:
            with path.open("rb") as stream:
                if whole:
                    _say(client.pub(topic, _all_of(stream), key=key, headers=headers))
                else:
                    _publish(client, topic, stream, path.stat().st_size)
        elif whole:
            _say(client.pub(topic, _all_of(sys.stdin.buffer), key=key, headers=headers))
        elif sys.stdin.isatty():
            click.echo("publishing every line you type; end with Ctrl-D", err=True)
            for line in lines_of(sys.stdin.buffer):
                _say(client.pub(topic, line))
        else:
            _publish(client, topic, sys.stdin.buffer, None)


def _say(receipt: Receipt) -> None:
    click.echo(f"{'DUP' if receipt.duplicate else 'OK'} {receipt.msg_id}")


def _headers(lines: tuple[str, ...]) -> dict[str, str] | None:
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name:
            raise click.UsageError(f"a header is NAME:VALUE, not {line!r}")
        if name in headers:
            raise click.UsageError(f"the header {name} stands twice")
        headers[name] = value.removeprefix(" ")
    return headers or None


def _all_of(stream: BinaryIO) -> bytes:
    """As much as any broker takes and a byte more, so that what is too large is refused and not cut."""
    return stream.read(PAYLOAD_BYTES_LIMIT + 1)


def _publish(client: sync.Client, topic: str, stream: Iterable[bytes], size: int | None) -> None:
    count = 0
    try:
        with click.progressbar(length=size or 0, label=f"publishing to {topic}", file=sys.stderr, hidden=size is None) as bar:

            def counted() -> Iterator[bytes]:
                for line in lines_of(stream):
                    yield line
                    if size is not None:
                        bar.update(len(line) + 1)

            for _ in client.pub_many(topic, counted()):
                count += 1
    finally:  # also when a line was refused: it is the next one
        click.echo(f"published {count}")
