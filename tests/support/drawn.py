"""Pictures that a test draws: written as they are, and kept to be looked at."""

from typing import Any

import pytest


def drawn_figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures of matplotlib that are saved from now on. Skips the test where it is not installed."""
    figure = pytest.importorskip("matplotlib.figure")
    drawn: list[Any] = []
    save = figure.Figure.savefig

    def savefig(self: Any, *arguments: Any, **options: Any) -> None:
        drawn.append(self)
        save(self, *arguments, **options)

    monkeypatch.setattr(figure.Figure, "savefig", savefig)
    return drawn
