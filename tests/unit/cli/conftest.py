"""Tests of the command line see no options from outside."""

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def nothing_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty directory, and an environment without options."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("TOYMQ_"):
            monkeypatch.delenv(name)
