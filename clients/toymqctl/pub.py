"""``toymqctl pub``."""

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import click

from toymq_client import sync


def lines_of(stream: Iterable[bytes]) -> Iterator[bytes]:
    """Lines without their newline."""
    for line in stream:
        yield line.removesuffix(b"\n")


@click.command()
@click.argument("topic")
@click.argument("payloads", nargs=-1)
@click.option("--key", help="Dedupe key, for a single payload: publishing it again answers DUP.")
@click.option("--file", "path", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Publish its lines.")
@click.pass_obj
def pub(
    connect: Callable[[], sync.Client], topic: str, payloads: tuple[str, ...], key: str | None, path: Path | None
) -> None:
    """Publish to TOPIC: each PAYLOAD, or every line of --file or of stdin.

    \b
        toymqctl pub orders '{"id": 17}' --key order-17
        toymqctl pub logs --file /var/log/syslog

    Prints `OK <id>` for each payload on the command line, and one line at the end for a stream. When it prints, the message is
    on the disk.
    """
    if key is not None and len(payloads) != 1:
        raise click.UsageError("--key goes with exactly one PAYLOAD")
    if payloads and path is not None:
        raise click.UsageError("PAYLOAD and --file exclude each other")
    with connect() as client:
        if payloads:
            for payload in payloads:
                receipt = client.pub(topic, payload.encode(errors="surrogateescape"), key=key)
                click.echo(f"{'DUP' if receipt.duplicate else 'OK'} {receipt.msg_id}")
        elif path is not None:
            with path.open("rb") as stream:
                _publish(client, topic, stream, path.stat().st_size)
        else:
            if sys.stdin.isatty():
                click.echo("publishing every line you type; end with Ctrl-D", err=True)
                for line in lines_of(sys.stdin.buffer):
                    click.echo(f"OK {client.pub(topic, line).msg_id}")
            else:
                _publish(client, topic, sys.stdin.buffer, None)


def _publish(client: sync.Client, topic: str, stream: Iterable[bytes], size: int | None) -> None:
    count = 0
    with click.progressbar(length=size or 0, label=f"publishing to {topic}", file=sys.stderr, hidden=size is None) as bar:

        def counted() -> Iterator[bytes]:
            for line in lines_of(stream):
                yield line
                if size is not None:
                    bar.update(len(line) + 1)

        for _ in client.pub_many(topic, counted()):
            count += 1
    click.echo(f"published {count}")
