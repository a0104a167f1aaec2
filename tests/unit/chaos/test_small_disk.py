"""A small disk: which users of the machine may mount one, and how it is filled."""

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from toymq_chaos import small_disk
from toymq_chaos.small_disk import SmallDisk


def test_without_root_the_reason_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert SmallDisk.mount(tmp_path) == (None, "mounting a file system needs root")


def test_a_mount_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=32, stderr="mount: not permitted\n"))
    assert SmallDisk.mount(tmp_path) == (None, "mount: not permitted")


def test_it_is_filled_until_the_disk_refuses_and_freed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_disk, "CHUNK", b"")  # a write of nothing is what a full disk takes
    disk = SmallDisk(tmp_path)
    disk.fill()
    assert (tmp_path / "filler").exists()
    disk.free()
    disk.free()
    assert not (tmp_path / "filler").exists()
