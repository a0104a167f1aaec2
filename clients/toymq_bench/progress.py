"""Progress bars on stderr."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click

REDRAW_S = 0.1


class Phase:
    """A progress bar from 0 to a length in any unit; drawn rarely, so that frequent updates are cheap."""

    def __init__(self, bar: "click._termui_impl.ProgressBar[int]") -> None:
        self._bar = bar
        self._due = 0.0

    def at(self, position: float) -> None:
        """Move the bar to a position."""
        now = time.perf_counter()
        if now >= self._due:
            self._due = now + REDRAW_S
            self._bar.update(min(int(position), self._bar.length or 0) - self._bar.pos)


@contextmanager
def phase(label: str, length: float) -> Iterator[Phase]:
    """Show a progress bar for one piece of work."""
    with click.progressbar(length=max(int(length), 1), label=label, file=sys.stderr) as bar:
        yield Phase(bar)
        bar.update((bar.length or 0) - bar.pos)
