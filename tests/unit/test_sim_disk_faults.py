"""The simulated disk fails where it is told to, and fills up."""

import errno
from collections.abc import Callable

import pytest

from tests.support.power_cuts import NEW, OLD, content_of, disk_with, outcomes
from tests.support.sim_disk import SimDisk, SimFile
from tests.support.sim_inode import PAGE_BYTES
from toymq_py.storage.fs import write_all


class TestFaults:
    def test_the_nth_call_fails_once_or_for_good(self) -> None:
        disk, file = disk_with()
        fault = disk.fail("pwrite", 2, errno.EIO)
        assert file.pwrite(b"1", 0) == 1
        with pytest.raises(OSError, match="Input/output error") as caught:
            file.pwrite(b"2", 1)
        assert (caught.value.errno, caught.value.filename, fault.fired) == (errno.EIO, "/data/a", 1)
        assert file.pwrite(b"3", 1) == 1
        assert file.pread(9, 0) == b"13", "the failed write left nothing"
        disk.fail("pread", 1, errno.EIO, sticky=True)
        for _ in range(3):
            with pytest.raises(OSError, match="Input/output error"):
                file.pread(1, 0)
        disk.heal()
        assert file.pread(1, 0) == b"1"

    @pytest.mark.parametrize(
        ("op", "call"),
        [
            ("pwrite", lambda disk, file: file.pwrite(b"x", 0)),
            ("pread", lambda disk, file: file.pread(1, 0)),
            ("sync", lambda disk, file: file.sync()),
            ("truncate", lambda disk, file: file.truncate(1)),
            ("allocate", lambda disk, file: file.allocate(0, 1)),
            ("open", lambda disk, file: disk.open("/data/n", create=True)),
            ("rename", lambda disk, file: disk.rename("/data/a", "/data/n")),
            ("unlink", lambda disk, file: disk.unlink("/data/a")),
            ("sync_dir", lambda disk, file: disk.sync_dir("/data")),
        ],
    )
    def test_every_op_can_fail_and_then_has_no_effect(
        self, op: str, call: Callable[[SimDisk, SimFile], object]
    ) -> None:
        disk, file = disk_with(content=b"old")
        before = disk.snapshot()
        fault = disk.fail(op, 1, errno.EDQUOT)
        with pytest.raises(OSError, match="quota") as caught:
            call(disk, file)
        assert caught.value.errno == errno.EDQUOT
        assert disk.snapshot() == before
        call(disk, file)
        assert fault.fired == 1

    def test_a_fault_can_be_bound_to_a_path(self) -> None:
        disk, file = disk_with()
        fault = disk.fail("sync", 1, errno.EIO, path="other")
        file.sync()
        assert not fault.fired

    def test_a_misspelt_op_is_refused(self) -> None:
        disk, _ = disk_with()
        with pytest.raises(ValueError, match="fsync"):
            disk.fail("fsync", 1, errno.EIO)

    def test_a_short_write_takes_what_it_says(self) -> None:
        disk, file = disk_with()
        disk.short_write(1, 3)
        assert file.pwrite(b"abcdef", 0) == 3
        assert file.pread(9, 0) == b"abc"
        disk.short_write(1, 2)
        write_all(file, b"ABCDEF", 0)
        assert file.pread(9, 0) == b"ABCDEF", "write_all goes on"

    def test_after_a_failed_sync_a_later_one_does_not_bring_the_pages_back(self) -> None:
        disk, file = disk_with(content=OLD)
        file.pwrite(NEW, 0)
        disk.fail("sync", 1, errno.EIO)
        with pytest.raises(OSError, match="Input/output error"):
            file.sync()
        assert file.pread(PAGE_BYTES, 0) == NEW, "the cache still shows them"
        file.sync()
        assert outcomes(disk, content_of("/data/a")) == {OLD, NEW}
        file.pwrite(NEW, PAGE_BYTES)
        file.sync()
        assert outcomes(disk, content_of("/data/a")) == {OLD + NEW, NEW + NEW}, "other pages are safe, the size too"
        file.pwrite(b"!", 7)
        file.sync()
        whole = NEW[:7] + b"!" + NEW[8:] + NEW
        assert outcomes(disk, content_of("/data/a")) == {whole}, "writing to the page again made it dirty again"

    def test_cutting_back_after_a_failed_sync_and_syncing_the_cut_is_safe(self) -> None:
        """The log does this when a sync fails with ENOSPC."""
        disk, file = disk_with(content=b"committed")
        file.pwrite(b"lost" * 3000, 9)
        disk.fail("sync", 1, errno.ENOSPC)
        with pytest.raises(OSError, match="No space left"):
            file.sync()
        file.truncate(9)
        file.sync()
        assert outcomes(disk, content_of("/data/a")) == {b"committed"}
        file.pwrite(b" again", 9)
        file.sync()
        assert outcomes(disk, content_of("/data/a")) == {b"committed again"}

    def test_cutting_inside_a_page_makes_it_dirty_again(self) -> None:
        disk, file = disk_with(content=OLD)
        file.pwrite(NEW, 0)
        disk.fail("sync", 1, errno.EIO)
        with pytest.raises(OSError, match="Input/output error"):
            file.sync()
        file.truncate(100)
        file.sync()
        assert outcomes(disk, content_of("/data/a")) == {NEW[:100]}


class TestSpace:
    def test_a_full_disk_takes_what_fits_and_then_says_enospc(self) -> None:
        disk, file = disk_with(capacity_bytes=2 * PAGE_BYTES)
        assert disk.free_bytes("/data") == 2 * PAGE_BYTES
        assert file.pwrite(b"x" * 10_000, 0) == 2 * PAGE_BYTES
        assert disk.free_bytes("/data") == 0
        with pytest.raises(OSError, match="No space left") as caught:
            file.pwrite(b"x", 2 * PAGE_BYTES)
        assert caught.value.errno == errno.ENOSPC
        assert file.pwrite(b"y" * 100, 0) == 100, "overwriting needs no space"

    def test_space_may_come_and_go_while_running(self) -> None:
        disk, file = disk_with(content=b"x", capacity_bytes=10 * PAGE_BYTES)
        disk.capacity_bytes = 0
        assert disk.free_bytes("/data") == 0
        assert file.pwrite(b"x" * 10_000, 1) == PAGE_BYTES - 1, "the page that is there is filled up"
        with pytest.raises(OSError, match="No space left"):
            file.pwrite(b"x", PAGE_BYTES)
        disk.capacity_bytes = None
        assert file.pwrite(b"x", PAGE_BYTES) == 1

    def test_the_last_page_takes_no_more_than_was_given(self) -> None:
        disk, file = disk_with(content=b"x")
        disk.capacity_bytes = 0
        assert file.pwrite(b"yz", 1) == 2

    def test_allocation_is_all_or_nothing_and_writes_into_it_need_no_space(self) -> None:
        disk, file = disk_with(capacity_bytes=4 * PAGE_BYTES)
        with pytest.raises(OSError, match="No space left"):
            file.allocate(0, 5 * PAGE_BYTES)
        assert (file.size(), disk.used_bytes) == (0, 0)
        file.allocate(0, 4 * PAGE_BYTES)
        assert disk.free_bytes("/data") == 0
        assert file.pwrite(NEW * 4, 0) == 4 * PAGE_BYTES

    def test_cut_unlink_and_replace_give_space_back(self) -> None:
        disk, file = disk_with(content=NEW * 4, capacity_bytes=8 * PAGE_BYTES)
        file.truncate(PAGE_BYTES)
        assert disk.used_bytes == PAGE_BYTES
        other = disk.open("/data/b", create=True)
        other.pwrite(NEW, 0)
        other.close()
        disk.rename("/data/b", "/data/a")
        assert disk.used_bytes == 2 * PAGE_BYTES, "the replaced file is still open"
        file.close()
        assert disk.used_bytes == PAGE_BYTES
        disk.unlink("/data/a")
        assert disk.used_bytes == 0

    def test_a_dead_process_and_a_crash_free_what_has_no_name(self) -> None:
        disk, _still_open = disk_with(content=NEW)
        disk.open("/data/keep", create=True).pwrite(NEW, 0)
        disk.unlink("/data/a")
        assert disk.used_bytes == 2 * PAGE_BYTES
        disk.sync_dir("/data")
        disk = disk.kill()
        assert disk.used_bytes == PAGE_BYTES
        disk.unlink("/data/keep")
        assert disk.used_bytes == 0, "the dead process's handle holds nothing"
        assert disk.crash().used_bytes <= PAGE_BYTES
