"""Small JSON files behind a checksum. Contract: storage.md, "offsets.json"."""

import errno
import os
import random
import re
from pathlib import Path

import pytest

from tests.support.sim_disk import SimDisk
from toymq_py.errors import DamagedData
from toymq_py.storage import checked_json
from toymq_py.storage.fs import RealFileSystem


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b"null", b'{"crc32": "00000000", "state": ', b'{"crc32": "xxxxxxxx", "state": {}}']
)
def test_other_files_are_no_checked_ones(body: bytes) -> None:
    with pytest.raises(DamagedData):
        checked_json.decode("state", body)


@pytest.mark.parametrize("body", [b"[1]", b"{1}", b"1"])
def test_a_checksum_that_fits_does_not_make_it_an_object(body: bytes) -> None:
    data = b'{"crc32": "%08x", "state": %b}\n' % (checked_json.crc32(body), body)
    with pytest.raises(DamagedData):
        checked_json.decode("state", data)


def test_one_kind_is_not_taken_for_another() -> None:
    with pytest.raises(DamagedData):
        checked_json.decode("segment", checked_json.encode("state", {}))


def disk_of(data: bytes) -> SimDisk:
    disk = SimDisk(random.Random(1))
    disk.mkdir("/d")
    file = disk.open("/d/x.json", create=True)
    file.pwrite(data, 0)
    return disk


def test_a_file_beyond_the_limit_is_damaged_and_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: with a sparse ``offsets.json`` of 2 GiB a start took 28 s and 6 GB of memory."""
    disk = disk_of(b"12345678")
    monkeypatch.setattr(checked_json, "FILE_BYTES_MAX", 8)
    assert checked_json.read(disk, "/d/x.json") == b"12345678"
    monkeypatch.setattr(checked_json, "FILE_BYTES_MAX", 7)
    disk.trace.clear()
    with pytest.raises(DamagedData, match="it has 8 bytes, and no such file has more than 7") as raised:
        checked_json.read(disk, "/d/x.json")
    assert not isinstance(raised.value, checked_json.Unreadable)
    assert [op for op, _, _ in disk.trace] == ["file_size"]


@pytest.mark.parametrize("op", ["file_size", "read_file"])
@pytest.mark.parametrize(("code", "what"), [(errno.EIO, "Input/output error"), (errno.EACCES, "Permission denied")])
def test_what_the_disk_refuses_is_unreadable(op: str, code: int, what: str) -> None:
    disk = disk_of(b"{}")
    disk.fail(op, 1, code)
    with pytest.raises(checked_json.Unreadable, match=f"^it cannot be read: {what}$"):
        checked_json.read(disk, "/d/x.json")
    assert checked_json.read(disk, "/d/x.json") == b"{}"


def test_a_passing_shortage_is_no_damage() -> None:
    """Found: offsets that could not be opened for lack of descriptors were put aside as damaged."""
    disk = disk_of(b"{}")
    disk.fail("read_file", 1, errno.EMFILE)
    with pytest.raises(OSError, match="Too many open files"):
        checked_json.read(disk, "/d/x.json")


def test_what_is_no_regular_file_is_damaged_and_not_waited_for(tmp_path: Path) -> None:
    fs, path = RealFileSystem(), tmp_path / "x.json"
    assert checked_json.read(fs, str(path)) is None
    for make, text in [
        (path.mkdir, "it is a directory, and no file"),
        (lambda: os.mkfifo(path), "it is no regular file"),
        (lambda: path.symlink_to("/dev/zero"), "it is no regular file"),
        (lambda: path.symlink_to(path), "its symbolic links lead nowhere"),
    ]:
        make()
        with pytest.raises(DamagedData, match=f"^{text}$") as raised:
            checked_json.read(fs, str(path))
        assert not isinstance(raised.value, checked_json.Unreadable)
        path.rmdir() if path.is_dir() else path.unlink()


def test_zeros_behind_a_file_are_damage() -> None:
    data = checked_json.encode("state", {"a": 1})
    assert checked_json.decode("state", data + b" \n") == {"a": 1}
    with pytest.raises(DamagedData):
        checked_json.decode("state", data + b"\0" * 4096)


@pytest.mark.parametrize(
    ("data", "word"), [(b'{"a": "7"', "7"), (b" " * checked_json.PEEK_BYTES + b'"a": "7"', None), (b"", None)]
)
def test_a_word_of_the_first_bytes_is_read_unchecked(data: bytes, word: str | None) -> None:
    pattern = re.compile(b'"a": "([0-9])"')
    assert checked_json.peek(disk_of(data), "/d/x.json", pattern) == word
    assert checked_json.peek(disk_of(data), "/d/none.json", pattern) is None
