"""``toymqctl topics``."""

import json
from collections.abc import Callable
from typing import Any

import click

from toymq_client import sync

_COLUMNS = ("topic", "messages", "bytes", "consumers", "ready", "inflight", "state")


def table(rows: list[tuple[str, ...]]) -> str:
    """Aligned columns; the first is text, the others are numbers."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) if i in (0, len(widths) - 1) else cell.rjust(width) for i, (cell, width) in
                  enumerate(zip(row, widths, strict=True))).rstrip()
        for row in rows
    )  # fmt: skip


def row_of(topic: dict[str, Any]) -> tuple[str, ...]:
    consumers = topic["consumers"]
    numbers = (topic["messages"], topic["bytes"], len(consumers))
    sums = (sum(c["ready"] for c in consumers), sum(c["inflight"] for c in consumers))
    return (topic["topic"], *map(str, numbers), *map(str, sums), topic["state"])


@click.command()
@click.argument("pattern", required=False)
@click.option("--json", "as_json", is_flag=True, help="Everything the broker tells, a JSON object a line.")
@click.pass_obj
def topics(connect: Callable[[], sync.Client], pattern: str | None, as_json: bool) -> None:
    """List topics: what is stored, who reads, what waits.

    `ready` and `inflight` are sums over the consumers. PATTERN: `orders.*`, `events.>`.
    """
    with connect() as client:
        found = client.topics(pattern)
    if as_json:
        for topic in found:
            click.echo(json.dumps(topic))
    elif found:
        click.echo(table([_COLUMNS, *map(row_of, found)]))
    else:
        click.echo("no topics")
