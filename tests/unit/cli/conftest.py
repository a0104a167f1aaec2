"""Tests of the command line do not see the developer's own options."""

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def nothing_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test in an empty directory, with an environment without options."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("TOYMQ_"):
            monkeypatch.delenv(name)
