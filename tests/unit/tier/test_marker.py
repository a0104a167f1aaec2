"""A file system that is not mounted is told from an empty bucket: nothing is written to its mount point."""

import random

import pytest

from tests.support.broker_rig import DIR
from tests.support.buckets import MemoryBucket
from tests.support.sim_disk import SimDisk
from tests.support.tiers import PAYLOAD, TierRig
from toymq_py.storage import checked_json
from toymq_py.tier.bucket import BucketError, DirectoryBucket
from toymq_py.tier.keys import segment_key
from toymq_py.tier.marker import FILE_NAME, KEY, Marker

MOUNT, URL = "/mnt/orders", "file:///mnt/orders"


class MarkedRig(TierRig):
    """A broker whose bucket is a directory."""

    def __init__(self, disk: SimDisk | None = None) -> None:
        super().__init__(MemoryBucket(), disk=disk)
        self.look_again()

    def look_again(self) -> None:
        """Check the mark as a new process does."""
        self.bucket = DirectoryBucket(self.disk, MOUNT)
        self.uploads = self.another_process()
        self.uploads._settle = Marker(self.disk, self.bucket, URL, DIR, lambda: "0123456789abcdef").settle

    def unmount(self) -> None:
        self.disk.rename(MOUNT, "/mnt/nas")
        self.disk.mkdir(MOUNT)

    def mount(self) -> None:
        self.disk.rmdir(MOUNT)
        self.disk.rename("/mnt/nas", MOUNT)


def used() -> MarkedRig:
    rig = MarkedRig()
    rig.publish("t", *[PAYLOAD] * 6)
    assert rig.round().segments == 1
    assert rig.disk.exists(f"{MOUNT}/{KEY}")
    return rig


@pytest.mark.parametrize("is_new_process", [False, True])
def test_a_mount_point_without_its_file_system_is_away_and_stays_empty(is_new_process: bool) -> None:
    rig = used()
    rig.unmount()
    if is_new_process:
        rig.look_again()
    rig.publish("t", *[PAYLOAD] * 6)
    for _ in range(3):
        with pytest.raises(BucketError, match=rf"{URL} was used by this directory, and has no {KEY}: its file "):
            rig.round()
    assert rig.disk.listdir(MOUNT) == []
    rig.mount()
    assert rig.round().segments == 1
    assert rig.findings() == []


def test_what_was_put_into_the_mount_point_before_that_was_seen_is_uploaded_again() -> None:
    rig = used()
    rig.disk.unlink(f"{MOUNT}/{segment_key(rig.place(), 0)}")  # as if it had gone to the directory below
    rig.unmount()
    with pytest.raises(BucketError):
        rig.round()
    rig.mount()
    assert rig.round().segments == 1
    assert rig.findings() == []


def test_a_bucket_that_was_emptied_on_purpose_is_begun_anew_when_the_file_is_removed() -> None:
    rig = used()
    rig.unmount()
    with pytest.raises(BucketError, match=f"or remove {DIR}/{FILE_NAME} to begin with an empty bucket"):
        rig.round()
    rig.disk.unlink(f"{DIR}/{FILE_NAME}")
    assert rig.round().segments == 1
    assert rig.disk.exists(f"{MOUNT}/{KEY}")


def test_another_url_is_another_bucket() -> None:
    disk, one, two = SimDisk(random.Random(1)), MemoryBucket(), MemoryBucket()
    disk.mkdir("/d")
    Marker(disk, one, "s3://one", "/d").settle()
    Marker(disk, one, "s3://one/", "/d").settle()
    Marker(disk, two, "s3://two", "/d").settle()
    assert one.objects.keys() == two.objects.keys() == {KEY}


def test_another_mark_of_the_same_url_is_refused_until_the_file_is_removed() -> None:
    """Found: it was only logged: when another broker's bucket was mounted in this place, it received this broker's segments."""
    disk, one, two = SimDisk(random.Random(1)), MemoryBucket(), MemoryBucket()
    disk.mkdir("/d")
    disk.mkdir("/e")
    Marker(disk, one, "s3://one", "/d", lambda: "ours").settle()
    Marker(disk, two, "s3://one", "/e", lambda: "theirs").settle()
    marker, file = Marker(disk, two, "s3://one", "/d"), disk.read_file(f"/d/{FILE_NAME}")
    why = "s3://one is another bucket than the one that this directory has used: its .toymq-bucket.json says theirs, and "
    for ask in (marker.check, marker.settle):
        with pytest.raises(BucketError, match=f"{why}/d/{FILE_NAME} says ours; mount the right one, or remove /d/{FILE_NAME} "):
            ask()
    assert (two.objects.keys(), disk.read_file(f"/d/{FILE_NAME}")) == ({KEY}, file)
    disk.unlink(f"/d/{FILE_NAME}")
    marker.settle()
    Marker(disk, two, "s3://one", "/d").settle()


def test_a_bucket_of_another_broker_that_is_mounted_gets_nothing() -> None:
    rig = used()
    rig.unmount()
    DirectoryBucket(rig.disk, MOUNT).put(KEY, checked_json.encode("bucket", {"id": "f" * 16}))
    rig.publish("t", *[PAYLOAD] * 6)
    for _ in range(3):
        with pytest.raises(BucketError, match="is another bucket"):
            rig.round()
    assert rig.disk.listdir(MOUNT) == [KEY]


def test_a_bucket_of_an_older_version_gets_its_mark_and_processes_share_it() -> None:
    disk, bucket = SimDisk(random.Random(1)), MemoryBucket()
    bucket.put("t/0123456789abcdef/x", b"")
    for worker in "ab":
        disk.mkdir(f"/{worker}")
        Marker(disk, bucket, "s3://one", f"/{worker}").settle()
    assert disk.read_file(f"/a/{FILE_NAME}") == disk.read_file(f"/b/{FILE_NAME}")


def test_damage_of_the_file_is_no_permission_to_write_to_an_empty_bucket() -> None:
    disk, bucket = SimDisk(random.Random(1)), MemoryBucket()
    disk.mkdir("/d")
    marker = Marker(disk, bucket, "s3://one", "/d")
    marker.settle()
    file = disk.open(f"/d/{FILE_NAME}")
    file.pwrite(b"garbage", 0)
    file.close()
    marker.check()
    bucket.objects.clear()
    with pytest.raises(BucketError, match=f"remove /d/{FILE_NAME}"):
        marker.settle()
    assert not bucket.objects


@pytest.mark.parametrize("is_used", [False, True])
@pytest.mark.parametrize("mark", [b"", b"garbage", b'{"crc32": "00000000", "bucket": {"id": "0123456789abcdef"}}\n'])
def test_a_mark_that_cannot_be_read_is_refused(mark: bytes, is_used: bool) -> None:
    disk, bucket = SimDisk(random.Random(1)), MemoryBucket()
    disk.mkdir("/d")
    marker = Marker(disk, bucket, "s3://one", "/d")
    if is_used:
        marker.settle()
    bucket.objects[KEY] = mark
    with pytest.raises(BucketError, match=f"{KEY} of s3://one cannot be read, .* the right one remove {KEY}") as refused:
        marker.settle()
    assert bucket.objects == {KEY: mark}
    assert (f"and /d/{FILE_NAME}" in str(refused.value)) == is_used
    bucket.objects.clear()
    if is_used:
        disk.unlink(f"/d/{FILE_NAME}")
    marker.settle()


def test_a_kill_between_mark_and_file_is_a_bucket_that_was_not_used_yet() -> None:
    disk, bucket = SimDisk(random.Random(1)), MemoryBucket()
    disk.mkdir("/d")
    Marker(disk, bucket, "s3://one", "/d").settle()
    disk.unlink(f"/d/{FILE_NAME}")
    mark = bucket.objects[KEY]
    Marker(disk, bucket, "s3://one", "/d").settle()
    assert (bucket.objects[KEY], disk.exists(f"/d/{FILE_NAME}")) == (mark, True)
