"""The number of worker processes that share a data directory."""

import errno
import random
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.sim_disk import SimDisk
from toymq_py.errors import DataDirectoryError
from toymq_py.storage.fs import RealFileSystem
from toymq_py.storage.offline.verify import check_data_directory
from toymq_py.storage.workers_file import (
    FILE_NAME,
    UnknownDivision,
    check_undivided,
    divide,
    divided_directory,
    load,
    worker_path,
)

FS = RealFileSystem()


def test_a_new_directory_is_divided_once(tmp_path: Path) -> None:
    root = str(tmp_path)
    assert load(FS, root) is None
    check_undivided(FS, root)
    for _ in range(2):
        divide(FS, root, 3)
    assert load(FS, root) == 3
    assert all(Path(worker_path(root, worker), "topics").is_dir() for worker in range(3))


def test_another_number_is_refused_and_says_which(tmp_path: Path) -> None:
    divide(FS, str(tmp_path), 2)
    with pytest.raises(DataDirectoryError, match="with --workers 2"):
        divide(FS, str(tmp_path), 3)
    assert not Path(worker_path(str(tmp_path), 2)).exists()


@pytest.mark.parametrize(
    "there", ["topics/orders", "webhooks.json", "workers/0/LOCK", "workers/0/topics/x y", "replica.json", "topics.restoring"]
)
def test_a_directory_that_holds_something_is_refused(tmp_path: Path, there: str) -> None:
    (tmp_path / there).mkdir(parents=True)
    with pytest.raises(DataDirectoryError, match=r"serve it without --workers|cannot be divided over workers: (it|a) "):
        divide(FS, str(tmp_path), 2)
    assert load(FS, str(tmp_path)) is None


def test_neither_one_process_nor_the_offline_tools_take_a_divided_directory(tmp_path: Path) -> None:
    divide(FS, str(tmp_path), 2)
    for check in (check_undivided, check_data_directory):
        with pytest.raises(DataDirectoryError, match="--workers 2"):
            check(FS, str(tmp_path))


@pytest.mark.parametrize("content", [b"", b"{}", b'{"crc32": "00000000", "workers": {"number": 2}}\n'])
def test_a_damaged_file_is_neither_one_nor_another_number(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    for use in (load, check_undivided, lambda fs, root: divide(fs, root, 2)):
        with pytest.raises(DataDirectoryError, match="damaged"):
            use(FS, str(tmp_path))
    with pytest.raises(UnknownDivision, match=f"`toymq workers {tmp_path} --set 1` makes it again"):
        load(FS, str(tmp_path))


@pytest.mark.parametrize("op", ["open", "pwrite", "sync", "rename", "mkdir", "sync_dir"])
@pytest.mark.parametrize("end", ["kill", "power cut"])
def test_killed_at_each_step_the_next_start_divides(op: str, end: str) -> None:
    """In a new directory a worker's directory is created before the number is stored."""
    nth, fired = 0, True
    while fired:
        nth += 1
        disk = SimDisk(random.Random(nth))
        for path in ("/data", "/data/d"):
            disk.mkdir(path)
        for path in ("/", "/data"):
            disk.sync_dir(path)
        fault = disk.fail(op, nth, errno.EIO)
        with suppress(OSError):
            divide(disk, "/data/d", 3)
        fired = fault.fired
        disk.heal()
        disk = disk.kill() if end == "kill" else disk.crash(random.Random(nth))
        for number in (3, 3) if load(disk, "/data/d") == 3 else (2, 2):
            divide(disk, "/data/d", number)
            assert load(disk, "/data/d") == number
    assert nth > 1


@pytest.mark.parametrize("left", ["nothing", "a mount point"])
def test_a_worker_whose_directory_is_gone_is_not_begun_anew(tmp_path: Path, left: str) -> None:
    """Otherwise that worker's topics would silently begin at id 0."""
    root, home = str(tmp_path), tmp_path / "workers" / "1"
    divide(FS, root, 2)
    (home / "topics").rmdir()
    if left == "nothing":
        home.rmdir()
    remedy = f"mount its file system, or restore it from a backup; `mkdir -p {home}/topics` goes on without them"
    with pytest.raises(DataDirectoryError, match=f"{home} is missing, .* topics of worker 1: {remedy}"):
        divide(FS, root, 2)
    assert home.exists() == (left != "nothing")
    (home / "topics").mkdir(parents=True)
    divide(FS, root, 2)


def test_a_directory_whose_file_is_missing_is_neither_of_one_process_nor_new(tmp_path: Path) -> None:
    root = str(tmp_path)
    divide(FS, root, 2)
    (tmp_path / "workers/1/topics/orders").mkdir()
    (tmp_path / FILE_NAME).unlink()
    said = f"{FILE_NAME} is missing, and {root}/workers has topics: `toymq workers {root} --set 2` makes it again"
    for use in (load, check_undivided, check_data_directory, lambda fs, root: divide(fs, root, 2)):
        with pytest.raises(DataDirectoryError, match=said):
            use(FS, root)


def test_the_directory_that_a_worker_is_a_part_of() -> None:
    paths = ("new/workers/0", "/a/b/workers/12", "/workers/1", "workers/1", "data", "my-workers/1", "workers/one")
    assert [divided_directory(path) for path in paths] == ["new", "/a/b", "/", ".", None, None, None]
