"""Simulates that ``topics`` is on a file system of its own."""

import errno

import pytest

from tests.support.sim_disk import SimDisk


def mounted(monkeypatch: pytest.MonkeyPatch, directory: str) -> None:
    """Make the directory ``topics`` look like a file system of its own: it has another device number, and renames to and from
    it fail."""
    inode, rename, topics = SimDisk.inode, SimDisk.rename, f"{directory}/topics"

    def rename_within(disk: SimDisk, old: str, new: str) -> None:
        if old.startswith(f"{topics}/") != new.startswith(f"{topics}/"):
            raise OSError(errno.EXDEV, "Invalid cross-device link", old)
        rename(disk, old, new)

    monkeypatch.setattr(SimDisk, "inode", lambda disk, path: (int(path == topics), inode(disk, path)[1]))
    monkeypatch.setattr(SimDisk, "rename", rename_within)
