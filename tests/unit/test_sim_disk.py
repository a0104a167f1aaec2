"""The simulated disk keeps its promises: what may be lost is lost for some seed, what may not is lost for none."""

import errno
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.power_cuts import NEW, OLD, content_of, disk_with, names_in, outcomes
from tests.support.sim_disk import SimDisk
from tests.support.sim_inode import PAGE_BYTES
from toymq_py.storage.fs import File, FileSystem, RealFileSystem, replace_file


class TestContent:
    def test_synced_data_survives_every_crash(self) -> None:
        disk, _ = disk_with(content=b"x" * 10_000)
        assert outcomes(disk, content_of("/data/a")) == {b"x" * 10_000}

    def test_an_unsynced_page_is_kept_or_lost(self) -> None:
        disk, file = disk_with(content=OLD)
        file.pwrite(NEW, 0)
        assert outcomes(disk, content_of("/data/a")) == {OLD, NEW}

    def test_unsynced_pages_are_kept_in_any_combination(self) -> None:
        disk, file = disk_with(content=OLD * 3)
        file.pwrite(NEW * 3, 0)
        after = outcomes(disk, content_of("/data/a"))
        assert len(after) == 8, "three pages, each old or new"

    def test_a_page_may_hold_any_of_its_unsynced_states(self) -> None:
        disk, file = disk_with(content=OLD)
        file.pwrite(b"1" * 100, 0)
        file.pwrite(b"2" * 100, 100)
        first = b"1" * 100 + OLD[100:]
        both = b"1" * 100 + b"2" * 100 + OLD[200:]
        assert outcomes(disk, content_of("/data/a")) == {OLD, first, both}, "never the second without the first"

    def test_the_size_is_kept_or_not_and_lost_pages_in_it_are_zeros(self) -> None:
        disk, file = disk_with(content=OLD)
        file.pwrite(NEW, PAGE_BYTES)
        assert outcomes(disk, content_of("/data/a")) == {OLD, OLD + NEW, OLD + bytes(PAGE_BYTES)}

    def test_an_unsynced_append_within_a_page_never_shows_garbage(self) -> None:
        disk, file = disk_with(content=b"abc")
        file.pwrite(b"def", 3)
        assert outcomes(disk, content_of("/data/a")) == {b"abc", b"abcdef", b"abc\0\0\0"}

    def test_an_unsynced_cut_is_kept_or_not(self) -> None:
        disk, file = disk_with(content=OLD + NEW)
        file.truncate(PAGE_BYTES)
        assert outcomes(disk, content_of("/data/a")) == {OLD, OLD + NEW}

    def test_a_cut_that_survived_leaves_zeros_where_the_file_grew_again(self) -> None:
        disk, file = disk_with(content=OLD + OLD)
        file.truncate(PAGE_BYTES + 100)
        file.truncate(PAGE_BYTES + 200)
        cut = OLD + OLD[:100]
        zeroed = cut + bytes(PAGE_BYTES - 100)  # the zeros that a cut puts into its page may come before the cut
        assert outcomes(disk, content_of("/data/a")) == {OLD + OLD, zeroed, cut, cut + bytes(100)}

    def test_what_follows_a_lost_cut_does_not_go_into_the_space_it_freed(self) -> None:
        disk, file = disk_with(content=OLD + OLD)
        file.truncate(0)
        file.pwrite(NEW + NEW, 0)
        ordered = outcomes(disk, content_of("/data/a"))
        assert OLD + OLD in ordered
        assert NEW + NEW in ordered
        assert OLD + NEW not in ordered
        disk, file = disk_with(content=OLD + OLD, ordered_metadata=False)
        file.truncate(0)
        file.pwrite(NEW + NEW, 0)
        assert OLD + NEW in outcomes(disk, content_of("/data/a")), "without order it may"

    def test_preallocated_space_reads_as_zeros(self) -> None:
        disk, file = disk_with(content=b"abc")
        file.allocate(0, 3 * PAGE_BYTES)
        zeros = b"abc" + bytes(3 * PAGE_BYTES - 3)
        assert file.pread(10 * PAGE_BYTES, 0) == zeros
        assert outcomes(disk, content_of("/data/a")) == {b"abc", zeros}
        file.sync()
        assert outcomes(disk, content_of("/data/a")) == {zeros}

    def test_sync_covers_the_file_and_no_other(self) -> None:
        disk, file = disk_with(content=OLD)
        other = disk.open("/data/b", create=True)
        disk.sync_dir("/data")
        other.pwrite(b"x", 0)
        file.pwrite(NEW, 0)
        file.sync()
        assert outcomes(disk, content_of("/data/a")) == {NEW}
        assert b"" in outcomes(disk, content_of("/data/b"))

    def test_pages_are_torn_at_sectors_only_when_asked(self) -> None:
        for torn, expected in ((False, 2), (True, 20)):
            disk, file = disk_with(content=OLD, torn_sectors=torn)
            file.pwrite(NEW, 0)
            after = outcomes(disk, content_of("/data/a"))
            assert (len(after) >= expected) if torn else (len(after) == expected)
            for content in after:
                assert isinstance(content, bytes)
                sectors = {content[at : at + 512] for at in range(0, PAGE_BYTES, 512)}
                assert sectors <= {OLD[:512], NEW[:512]}, "a sector is whole"

    def test_what_survived_a_crash_survives_the_next(self) -> None:
        disk, file = disk_with(content=OLD * 4)
        file.pwrite(NEW * 4, 0)
        for _ in range(20):
            disk = disk.crash()
            assert outcomes(disk, content_of("/data/a")) == {disk.read_file("/data/a")}


class TestNames:
    def test_an_unsynced_name_is_lost_for_some_seed_although_its_data_is_synced(self) -> None:
        disk, _ = disk_with()
        file = disk.open("/data/b", create=True)
        file.pwrite(b"x", 0)
        file.sync()
        assert outcomes(disk, content_of("/data/b")) == {None, b"x"}
        disk.sync_dir("/data")
        assert outcomes(disk, content_of("/data/b")) == {b"x"}

    def test_an_unlinked_file_is_back_until_its_directory_is_synced(self) -> None:
        disk, _ = disk_with(content=b"x")
        disk.unlink("/data/a")
        assert outcomes(disk, content_of("/data/a")) == {None, b"x"}
        disk.sync_dir("/data")
        assert outcomes(disk, content_of("/data/a")) == {None}

    @pytest.mark.parametrize("ordered", [True, False])
    def test_a_rename_happened_or_not_and_nothing_between(self, ordered: bool) -> None:
        disk, _ = disk_with(content=b"old", ordered_metadata=ordered)
        temporary = disk.open("/data/a.tmp", create=True)
        disk.sync_dir("/data")
        temporary.pwrite(b"new", 0)
        temporary.sync()
        disk.rename("/data/a.tmp", "/data/a")
        assert outcomes(disk, lambda after: tuple(after.snapshot().items())) == {
            (("/data/", b""), ("/data/a", b"old"), ("/data/a.tmp", b"new")),
            (("/data/", b""), ("/data/a", b"new")),
        }

    def test_a_rename_of_what_was_never_synced_may_leave_an_empty_file(self) -> None:
        disk, _ = disk_with(content=b"old")
        temporary = disk.open("/data/a.tmp", create=True)
        temporary.pwrite(b"new", 0)
        disk.rename("/data/a.tmp", "/data/a")
        assert {b"old", b"new", b""} <= outcomes(disk, content_of("/data/a"))

    def test_replace_file_is_atomic_and_durable(self) -> None:
        for ordered in (True, False):
            disk, _ = disk_with(content=b"old", ordered_metadata=ordered)
            replace_file(disk, "/data/a", b"new")
            assert outcomes(disk, content_of("/data/a")) == {b"new"}

    def test_ordered_names_survive_as_a_prefix_per_directory(self) -> None:
        prefixes = {(), ("0",), ("0", "1"), ("0", "1", "2")}
        for ordered in (True, False):
            disk = SimDisk(random.Random(1), ordered_metadata=ordered)
            for name in "012":
                disk.open(f"/data/{name}", create=True)
            after = outcomes(disk, names_in("/data"))
            assert after == prefixes if ordered else len(after) == 8

    def test_directories_are_independent_of_each_other(self) -> None:
        disk = SimDisk(random.Random(1))
        for directory in ("/data/x", "/data/y"):
            disk.mkdir(directory)
        disk.sync_dir("/data")
        for directory in ("/data/x", "/data/y"):
            disk.open(f"{directory}/f", create=True)
        after = outcomes(disk, lambda one: (one.exists("/data/x/f"), one.exists("/data/y/f")))
        assert len(after) == 4
        disk.sync_dir("/data/y")
        after = outcomes(disk, lambda one: (one.exists("/data/x/f"), one.exists("/data/y/f")))
        assert after == {(False, True), (True, True)}

    def test_syncing_one_end_of_a_rename_syncs_what_came_before_it_at_the_other(self) -> None:
        for ordered, expected in ((True, {True}), (False, {True, False})):
            disk = SimDisk(random.Random(1), ordered_metadata=ordered)
            disk.mkdir("/data/x")
            disk.mkdir("/data/y")
            disk.sync_dir("/data")
            for path in ("/data/x/before", "/data/x/moved", "/data/x/after"):
                disk.open(path, create=True)
                if path == "/data/x/moved":
                    disk.rename(path, "/data/y/moved")
            disk.sync_dir("/data/y")
            assert outcomes(disk, lambda one: one.exists("/data/y/moved")) == {True}
            assert outcomes(disk, lambda one: one.exists("/data/x/before")) == expected
            assert outcomes(disk, lambda one: one.exists("/data/x/after")) == {True, False}

    def test_a_directory_takes_its_files_along_when_its_own_name_was_not_synced(self) -> None:
        disk = SimDisk(random.Random(1))
        disk.mkdir("/data/topics")
        disk.open("/data/topics/f", create=True)
        disk.sync_dir("/data/topics")
        assert outcomes(disk, content_of("/data/topics/f")) == {None, b""}

    def test_a_directory_is_renamed_with_all_that_is_in_it(self) -> None:
        disk = SimDisk(random.Random(1))
        disk.mkdir("/data/t")
        disk.sync_dir("/data")
        disk.open("/data/t/f", create=True)
        disk.sync_dir("/data/t")
        disk.rename("/data/t", "/data/.deleted-1")
        assert disk.exists("/data/.deleted-1/f")
        after = outcomes(disk, lambda one: (one.exists("/data/t/f"), one.exists("/data/.deleted-1/f")))
        assert after == {(True, False), (False, True)}

    @pytest.mark.parametrize("ordered", [True, False])
    def test_a_file_has_one_name_at_most_after_any_crash(self, ordered: bool) -> None:
        """Found while writing the model: after several renames, also to another directory, a lost one left the file with two
        names."""
        disk, _ = disk_with(content=b"x", ordered_metadata=ordered)
        disk.mkdir("/data/d")
        disk.sync_dir("/data")
        disk.rename("/data/a", "/data/b")
        disk.rename("/data/b", "/data/d/c")
        disk.rename("/data/d/c", "/data/d/e")

        def homes(after: SimDisk) -> object:
            return tuple(path for path, content in after.snapshot().items() if content == b"x")

        every = {("/data/a",), ("/data/b",), ("/data/d/c",), ("/data/d/e",)}
        assert outcomes(disk, homes) == every
        disk.sync_dir("/data/d")
        assert outcomes(disk, homes) == {("/data/d/e",)}


class TestKill:
    def test_the_page_cache_survives_and_is_still_unsynced(self) -> None:
        disk, file = disk_with(content=OLD)
        file.pwrite(NEW, 0)
        disk.open("/data/b", create=True)
        disk = disk.kill()
        assert disk.read_file("/data/a") == NEW
        assert disk.exists("/data/b")
        assert outcomes(disk, content_of("/data/a")) == {OLD, NEW}, "a power cut later still loses it"
        assert outcomes(disk, content_of("/data/b")) == {None, b""}
        disk.open("/data/a").sync()
        assert outcomes(disk, content_of("/data/a")) == {NEW}, "unless the next process syncs it"

    @pytest.mark.parametrize("end", [SimDisk.kill, SimDisk.crash])
    def test_a_dead_process_can_do_nothing(self, end: Callable[[SimDisk], SimDisk]) -> None:
        disk, file = disk_with(content=b"x")
        after = end(disk)
        attempts: list[Callable[[], object]] = [
            lambda: file.pwrite(b"y", 0),
            lambda: file.pread(1, 0),
            file.sync,
            lambda: file.truncate(0),
            lambda: file.allocate(0, 9),
            file.size,
            file.lock,
            lambda: disk.open("/data/a"),
            lambda: disk.rename("/data/a", "/data/b"),
            lambda: disk.unlink("/data/a"),
            lambda: disk.sync_dir("/data"),
            lambda: disk.exists("/data/a"),
            disk.kill,
            disk.crash,
        ]
        for attempt in attempts:
            with pytest.raises(OSError, match="Bad file descriptor") as caught:
                attempt()
            assert caught.value.errno == errno.EBADF
        file.close()  # never raises
        assert after.snapshot() == {"/data/": b"", "/data/a": b"x"}

    def test_locks_exclude_other_handles_until_closed_or_killed(self) -> None:
        disk, first = disk_with()
        second = disk.open("/data/a")
        assert first.lock()
        assert first.lock(), "by the same handle again"
        assert not second.lock()
        first.close()
        assert second.lock()
        for end in (SimDisk.kill, SimDisk.crash):
            disk = end(disk)
            handle = disk.open("/data/a")
            assert handle.lock()

    def test_a_closed_handle_answers_ebadf(self) -> None:
        _, file = disk_with()
        file.close()
        file.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            file.pread(1, 0)


class TestTrace:
    def test_every_call_is_listed_failed_ones_too(self) -> None:
        disk, file = disk_with()
        disk.trace.clear()
        disk.fail("sync", 1, errno.EIO)
        file.pwrite(b"abc", 5)
        with pytest.raises(OSError, match="Input/output error"):
            file.sync()
        disk.rename("/data/a", "/data/b")
        disk.sync_dir("/data")
        assert disk.trace == [
            ("pwrite", "/data/a", (5, 3)),
            ("sync", "/data/a", ()),
            ("rename", "/data/a", ("/data/b",)),
            ("sync_dir", "/data", ()),
        ]

    def test_it_can_be_off(self) -> None:
        disk, _ = disk_with(tracing=False)
        assert disk.trace == []


def some_history(disk: SimDisk, rng: random.Random) -> SimDisk:
    """Make a hundred random calls with crashes and kills among them. Returns: the disk."""
    names = [f"/data/{name}" for name in "abcd"]
    for _ in range(100):
        match rng.randrange(9):
            case 0:
                disk = disk.crash()
            case 1:
                disk = disk.kill()
            case 2:
                disk.sync_dir("/data")
            case 3 if disk.exists(name := rng.choice(names)):
                disk.rename(name, rng.choice(names))
            case 4 if disk.exists(name := rng.choice(names)):
                disk.unlink(name)
            case 5:
                disk.open(rng.choice(names), create=True).truncate(rng.randrange(20_000))
            case 6:
                disk.open(rng.choice(names), create=True).sync()
            case _:
                content = rng.randbytes(rng.randrange(10_000))
                disk.open(rng.choice(names), create=True).pwrite(content, rng.randrange(20_000))
    return disk


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("ordered", [True, False])
def test_same_seed_same_result(ordered: bool, torn: bool) -> None:
    def run(seed: int) -> dict[str, bytes]:
        disk = SimDisk(random.Random(seed), ordered_metadata=ordered, torn_sectors=torn)
        return some_history(disk, random.Random(42)).crash().snapshot()

    assert run(7) == run(7)
    assert len({tuple(run(seed).items()) for seed in range(20)}) > 5, "the seed decides something"


@pytest.mark.parametrize("ordered", [True, False])
def test_what_was_synced_is_there_after_any_history(ordered: bool) -> None:
    """After any history everything is synced, so a crash changes nothing, and the space adds up."""
    for seed in range(100):
        rng = random.Random(seed)
        disk = some_history(SimDisk(rng, ordered_metadata=ordered), rng)
        for name in disk.listdir("/data"):
            disk.open(f"/data/{name}").sync()
        disk.sync_dir("/data")
        before = disk.snapshot()
        after = disk.crash()
        assert after.snapshot() == before, f"seed {seed}"
        assert after.used_bytes == sum(-(-len(content) // PAGE_BYTES) * PAGE_BYTES for content in before.values())


def test_it_answers_as_the_real_file_system_does(tmp_path: Path) -> None:
    """The same random calls to both give the same results, errnos and files. (Nothing is synced: that is slow.)"""
    names = ["a", "b", "d", "d/a", "d/b", "d/e", "d/e/f", "missing/x", "a/b"]

    def attempt(call: Callable[[], object]) -> object:
        try:
            return call()
        except OSError as error:
            return errno.errorcode[error.errno or 0]

    def step(fs: FileSystem, root: str, files: list[File], rng: random.Random) -> object:
        path, other = (f"{root}/{rng.choice(names)}" for _ in range(2))
        number, size, flags = rng.randrange(16), rng.randrange(9000), [rng.random() < 0.5 for _ in range(3)]
        file = rng.choice(files) if files else None
        match number:
            case 0 | 1 | 2 if not fs.is_dir(path):  # the seam opens files only

                def opened() -> str:
                    create, exclusive, write = flags
                    files.append(fs.open(path, create=create, exclusive=create and exclusive, write=write))
                    return "opened"

                return attempt(opened)
            case 3:
                return attempt(lambda: fs.mkdir(path))
            case 4:
                return attempt(lambda: fs.rename(path, other))
            case 5:
                return attempt(lambda: fs.unlink(path))
            case 6:
                return attempt(lambda: fs.rmdir(path))
            case 7:
                return attempt(lambda: fs.listdir(path)), fs.exists(path), fs.is_dir(path)
            case 8:
                return attempt(lambda: fs.read_file(path))
            case 9 if not fs.is_dir(path):
                return attempt(lambda: fs.file_size(path))
            case 10 | 11 if file:
                return attempt(lambda: file.pwrite(bytes([size % 251]) * (size // 3), size))
            case 12 if file:
                return attempt(lambda: file.truncate(size)), attempt(file.size)
            case 13 if file:
                return attempt(lambda: file.pread(size, size // 2))
            case 14 if file:
                return attempt(file.lock)
            case 15 if file:
                files.remove(file)
                return attempt(file.close), attempt(lambda: file.pread(1, 0))
        return None

    seen: set[str] = set()
    for seed in range(150):
        real_root = tmp_path / str(seed)
        real_root.mkdir()
        disk, real = SimDisk(random.Random(seed)), RealFileSystem()
        sim_files: list[File] = []
        real_files: list[File] = []
        sim_rng, real_rng = random.Random(seed), random.Random(seed)
        for number in range(60):
            expected = step(real, str(real_root), real_files, real_rng)
            assert step(disk, "/data", sim_files, sim_rng) == expected, f"seed {seed}, step {number}"
            seen.add(str(expected))
        for file in real_files:
            file.close()
    assert {"ENOENT", "ENOTDIR", "EEXIST", "EISDIR", "ENOTEMPTY", "EBADF", "EINVAL"} <= {
        code for code in errno.errorcode.values() if any(code in answer for answer in seen)
    }, "the calls met every error"
