"""Formats tables for people; programs use ``--json``."""

import json
import shutil
import sys
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import click

_BYTES = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
_SECONDS = (("d", 86_400), ("h", 3600), ("m", 60))
NARROWEST = 8
"""Least characters of a cut text."""
PADDED_MAX = 60
"""Most characters to which texts are padded where nothing is cut: one long reason of a dead letter moved all columns behind it
by a thousand."""


def table(rows: Sequence[Sequence[str]], text: Collection[int] = (0,), room: int | None = None) -> str:
    """Format rows as a table; the first row has the names of the columns. Columns in ``text`` are aligned left, numbers right.

    Args:
        room: most characters of a line: columns in ``text`` are cut, the widest first. None: unlimited, and an unusually long
            text shifts the rest of its line.
    """
    shown = [[printable(cell) for cell in row] for row in rows]
    widths = _widths(shown)
    if room is not None:
        _narrow(widths, text, room)
    else:
        widths = [min(width, PADDED_MAX) if at in text else width for at, width in enumerate(widths)]
    lines = []
    for row in shown:
        cells = row if room is None else [cut(cell, width) for cell, width in zip(row, widths, strict=True)]
        padded = zip(cells, widths, strict=True)
        lines.append("  ".join(cell.ljust(width) if i in text else cell.rjust(width) for i, (cell, width) in enumerate(padded)))
    return "\n".join(map(str.rstrip, lines))


def fitting(
    rows: Sequence[Sequence[str]], text: Collection[int], room: int | None, spare: Sequence[int], *, least: int = NARROWEST
) -> str:  # fmt: skip
    """Format a table with the columns that have room, and a line that says which were left out: as few as possible of
    ``spare``, in that order. A column in ``text`` has room if ``least`` of its characters have."""
    out: list[int] = []
    kept = list(range(len(rows[0])))
    widths = _widths([[printable(cell) for cell in row] for row in rows])
    for column in spare:
        needed = sum(min(widths[at], least) if at in text else widths[at] for at in kept) + 2 * (len(kept) - 1)
        if room is None or needed <= room:
            break
        kept.remove(column)
        out.append(column)
    shown = table([[row[at] for at in kept] for row in rows], [i for i, at in enumerate(kept) if at in text], room)
    if not out:
        return shown
    return f"{shown}\nthe terminal is narrow: --json has {', '.join(rows[0][at] for at in sorted(out))}, too"


def cut(text: str, width: int) -> str:
    """Cut a text to at most ``width`` characters: a name in its middle, since long names differ at their ends, a sentence at
    its end."""
    if len(text) <= width:
        return text
    tail = 0 if " " in text else (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def _widths(shown: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*shown, strict=True)]


def _narrow(widths: list[int], text: Collection[int], room: int) -> None:
    """Reduce the widths of the columns in ``text`` until the table fits into ``room``, as far as possible."""
    excess = sum(widths) + 2 * (len(widths) - 1) - room
    while excess > 0:
        widest = max(text, key=lambda at: widths[at])
        if widths[widest] <= NARROWEST:
            return
        widths[widest] -= 1
        excess -= 1


def screen_room() -> int | None:
    """The width of the terminal; None when stdout is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def printable(text: str) -> str:
    """Replace unprintable characters: a text that strangers wrote must not move the cursor or reverse the text."""
    return text if text.isprintable() else "".join(each if each.isprintable() else "·" for each in text)


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Format names and values, one pair per line."""
    return table(list(rows), text=(0, 1))


def size(count: int) -> str:
    """Format a number of bytes with a unit: ``108B``, ``3.1KiB``."""
    for unit, factor in _BYTES:
        if count >= factor:
            return f"{count / factor:.1f}{unit}"
    return f"{count}B"


def duration(seconds: float) -> str:
    """Format seconds with a unit: ``0.3s``, ``12.0m``, ``3.5d``."""
    for unit, factor in _SECONDS:
        if seconds >= factor:
            return f"{seconds / factor:.1f}{unit}"
    return f"{seconds:.1f}s"


def print_json(rows: Iterable[Any]) -> None:
    """Print each value as one line of JSON."""
    for row in rows:
        click.echo(json.dumps(row))


as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
"""The option ``--json`` of commands that read."""
