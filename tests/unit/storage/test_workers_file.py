"""Over how many processes a data directory is divided."""

from pathlib import Path

import pytest

from toymq_py.errors import DataDirectoryError
from toymq_py.storage.fs import RealFileSystem
from toymq_py.storage.offline.verify import check_data_directory
from toymq_py.storage.workers_file import FILE_NAME, check_undivided, divide, load, worker_path

FS = RealFileSystem()


def test_a_new_directory_is_divided_once(tmp_path: Path) -> None:
    root = str(tmp_path)
    assert load(FS, root) is None
    check_undivided(FS, root)
    for _ in range(2):
        divide(FS, root, 3)
    assert load(FS, root) == 3
    assert all(Path(worker_path(root, worker)).is_dir() for worker in range(3))


def test_another_number_is_refused_and_says_which(tmp_path: Path) -> None:
    divide(FS, str(tmp_path), 2)
    with pytest.raises(DataDirectoryError, match="with --workers 2"):
        divide(FS, str(tmp_path), 3)
    assert not Path(worker_path(str(tmp_path), 2)).exists()


@pytest.mark.parametrize("there", ["topics/orders", "webhooks.json", "workers/0", "replica.json", "topics.restoring"])
def test_a_directory_that_holds_something_is_refused(tmp_path: Path, there: str) -> None:
    (tmp_path / there).mkdir(parents=True)
    with pytest.raises(DataDirectoryError, match="serve it without --workers"):
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
