"""Enumerates what a simulated disk may hold after a power cut, over all seeds."""

import random
from collections.abc import Callable

from tests.support.sim_disk import SimDisk, SimFile
from tests.support.sim_inode import PAGE_BYTES
from toymq_py.storage.fs import write_all

SEEDS = range(200)
OLD = b"o" * PAGE_BYTES
NEW = b"n" * PAGE_BYTES


def disk_with(path: str = "/data/a", content: bytes = b"", **options: object) -> tuple[SimDisk, SimFile]:
    """Return a disk on which ``path`` is durable with ``content``, and the open file."""
    disk = SimDisk(random.Random(1), **options)  # type: ignore[arg-type]
    file = disk.open(path, create=True)
    write_all(file, content, 0)
    file.sync()
    disk.sync_dir("/data")
    assert isinstance(file, SimFile)
    return disk, file


def outcomes(disk: SimDisk, look: Callable[[SimDisk], object]) -> set[object]:
    """Return the set of what ``look`` sees after a power cut at this moment, over all seeds."""
    return {look(disk.peek_crash(random.Random(seed))) for seed in SEEDS}


def content_of(path: str) -> Callable[[SimDisk], object]:
    return lambda disk: disk.read_file(path) if disk.exists(path) else None


def names_in(path: str) -> Callable[[SimDisk], object]:
    return lambda disk: tuple(disk.listdir(path))
