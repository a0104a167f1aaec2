"""Pictures that a test draws: written as they are, and kept to be looked at."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest


def late(module: str, name: str) -> Callable[..., Any]:
    """A function of a module that imports matplotlib: imported by its first call. Each worker of ``make test`` collects every
    file, and one of them draws."""
    return lambda *given, **named: getattr(import_module(module), name)(*given, **named)


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
