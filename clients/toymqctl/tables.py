"""Tables for people; programs take ``--json``."""

import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import click

_BYTES = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
_SECONDS = (("d", 86_400), ("h", 3600), ("m", 60))


def table(rows: Sequence[Sequence[str]], text: Collection[int] = (0,)) -> str:
    """Aligned columns, the first row is their names. Columns in ``text`` are aligned left, numbers right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = zip(row, widths, strict=True)
        lines.append("  ".join(cell.ljust(width) if i in text else cell.rjust(width) for i, (cell, width) in enumerate(cells)))
    return "\n".join(map(str.rstrip, lines))


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Names and values, one a line."""
    return table(list(rows), text=(0, 1))


def size(count: int) -> str:
    """Bytes with a unit: ``108B``, ``3.1KiB``."""
    for unit, factor in _BYTES:
        if count >= factor:
            return f"{count / factor:.1f}{unit}"
    return f"{count}B"


def duration(seconds: float) -> str:
    """Seconds with a unit: ``0.3s``, ``12.0m``, ``3.5d``."""
    for unit, factor in _SECONDS:
        if seconds >= factor:
            return f"{seconds / factor:.1f}{unit}"
    return f"{seconds:.1f}s"


def print_json(rows: Iterable[Any]) -> None:
    """One value a line."""
    for row in rows:
        click.echo(json.dumps(row))


as_json = click.option("--json", "as_json", is_flag=True, help="For programs: a JSON object a line.")
"""The option that every reader has."""
