"""A bucket in a directory and one in an object store keep the same promises."""

import errno
import os
import random
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.buckets import MemoryBucket
from tests.support.sim_disk import SimDisk
from toymq_py.errors import ConfigError
from toymq_py.storage.fs import RealFileSystem
from toymq_py.tier.bucket import Bucket, BucketError, DirectoryBucket, ObjectStoreBucket, check_there, open_bucket


@pytest.fixture(params=["directory", "simulated", "object store"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bucket]:
    if request.param == "directory":
        yield open_bucket(f"file://{tmp_path}/a/b", RealFileSystem())
    elif request.param == "simulated":
        yield DirectoryBucket(SimDisk(random.Random(1)), "/mnt/bucket")
    else:
        stores = pytest.importorskip("obstore.store", reason="obstore is not installed: pip install '.[lake]'")
        yield ObjectStoreBucket(stores.MemoryStore())


def test_objects_are_put_once_read_listed_and_deleted(bucket: Bucket) -> None:
    assert list(bucket.keys()) == []
    assert bucket.get("t/i/a") is None
    assert bucket.put_new("t/i/a", b"one")
    assert not bucket.put_new("t/i/a", b"two")
    bucket.put("t/i/b", b"")
    bucket.put("t/i/b", b"three")
    bucket.put("u/i/a", b"x" * 100_000)
    assert sorted(bucket.keys()) == ["t/i/a", "t/i/b", "u/i/a"]
    assert (bucket.get("t/i/a"), bucket.get("t/i/b"), len(bucket.get("u/i/a") or b"")) == (b"one", b"three", 100_000)
    assert [bucket.size(key) for key in ("t/i/a", "u/i/a", "t/i/none")] == [3, 100_000, None]
    for _ in range(2):
        bucket.delete("t/i/a")
    assert sorted(bucket.keys()) == ["t/i/b", "u/i/a"]


@pytest.mark.parametrize("operation", ["open", "pwrite", "sync", "rename", "sync_dir", "mkdir"])
def test_a_directory_keeps_whole_objects_when_any_call_fails_and_the_power_is_cut(operation: str) -> None:
    for nth in range(1, 20):
        disk = SimDisk(random.Random(nth))
        bucket = DirectoryBucket(disk, "/mnt/bucket")
        bucket.put("t/i/a", b"a" * 9000)
        fault, kept = disk.fail(operation, nth, errno.EIO), []
        for key in ("t/i/b", "u/i/c"):
            with suppress(BucketError):
                bucket.put_new(key, key.encode() * 900)
                kept.append(key)
        disk.heal()
        after = DirectoryBucket(disk.crash(), "/mnt/bucket")
        assert {key: after.get(key) for key in after.keys()}.items() >= {"t/i/a": b"a" * 9000}.items()  # noqa: SIM118
        for key in ("t/i/b", "u/i/c"):
            assert after.get(key) in ({None, key.encode() * 900} if key not in kept else {key.encode() * 900}), key
        if not fault.fired:
            return
    raise AssertionError("more calls than were tried")


def test_a_directory_that_is_gone_is_not_made_anew(tmp_path: Path) -> None:
    """Found: when an NAS was not mounted, its mount point received the objects."""
    path, away = tmp_path / "mnt" / "orders", tmp_path / "away"
    bucket = DirectoryBucket(RealFileSystem(), str(path))
    identity = bucket.identity()
    bucket.put("t/i/a", b"x")
    assert bucket.identity() == identity
    (tmp_path / "mnt").rename(away)
    for call in (bucket.identity, lambda: bucket.put_new("t/i/b", b"x"), lambda: bucket.put("t/i/b", b"x"),
                 lambda: bucket.get("t/i/a"), lambda: list(bucket.keys()), lambda: bucket.delete("t/i/a")):  # fmt: skip
        with pytest.raises(BucketError, match="orders is gone: mount its file system, or make it"):
            call()
    assert not (tmp_path / "mnt").exists()
    away.rename(tmp_path / "mnt")
    assert list(bucket.keys()) == ["t/i/a"]
    assert bucket.identity() != identity, "what it has is to be looked at"


def test_an_object_is_missing_only_where_others_are() -> None:
    """An empty directory may be a mount point without its file system."""
    bucket = MemoryBucket()
    with pytest.raises(BucketError, match="the bucket is empty: is its file system mounted"):
        check_there(bucket)
    bucket.put("t/i/a", b"x")
    check_there(bucket)


def test_what_cannot_be_reached_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    bucket = DirectoryBucket(RealFileSystem(), str(tmp_path / "file"))
    with pytest.raises(BucketError, match=r"^the bucket: "):
        bucket.put("t/i/a", b"x")
    shutil.rmtree(tmp_path)
    assert list(bucket.keys()) == []


def test_a_store_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "obstore.store", None)
    with pytest.raises(ConfigError, match=r"s3:// needs obstore: .*\[lake\]"):
        open_bucket("s3://bucket/prefix", RealFileSystem())


def make_socket(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, make_socket])
def test_what_is_no_file_is_a_damaged_object_and_blocks_nothing(
    make: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found: one FIFO in the place of a segment ended a whole restore."""
    monkeypatch.chdir(tmp_path)  # the path of a socket is short
    bucket = open_bucket(f"file://{tmp_path}", RealFileSystem())
    bucket.put("t/a", b"x")
    make("t/b")
    assert (bucket.get("t/a"), bucket.get("t/b"), bucket.get_range("t/b", 0, 9)) == (b"x", b"", b"")
    assert bucket.put_new("t/b", b"x") is False
