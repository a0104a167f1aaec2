"""Access to the pictures that a test draws with matplotlib."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest


def late(module: str, name: str) -> Callable[..., Any]:
    """Return a function of a module that imports matplotlib; the module is imported at its first call. Each worker of ``make
    test`` collects every test file, and few of them draw."""
    return lambda *given, **named: getattr(import_module(module), name)(*given, **named)


def drawn_figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list to which every matplotlib figure that is saved from now on is added. Skips the test if matplotlib is not
    installed."""
    figure = pytest.importorskip("matplotlib.figure")
    drawn: list[Any] = []
    save = figure.Figure.savefig

    def savefig(self: Any, *arguments: Any, **options: Any) -> None:
        drawn.append(self)
        save(self, *arguments, **options)

    monkeypatch.setattr(figure.Figure, "savefig", savefig)
    return drawn
