"""How many lives of the broker in a row ended without a clean stop."""

import errno
import random
from collections.abc import Callable

import pytest

from tests.support.sim_disk import SimDisk
from toymq_py.storage.fs import FileSystem
from toymq_py.storage.unclean_ends import FILE_NAME, carry_over, count_life, end_cleanly, uncount_life

DIR = "/d"


@pytest.fixture
def disk() -> SimDisk:
    disk = SimDisk(random.Random(1))
    disk.mkdir(DIR)
    return disk


def test_each_life_counts_those_before_it_until_one_ends_cleanly(disk: SimDisk) -> None:
    for before in (0, 1, 2):
        assert count_life(disk, DIR) == before
        disk = disk.kill()
    end_cleanly(disk, DIR)
    assert disk.listdir(DIR) == []
    end_cleanly(disk, DIR)  # idempotent
    assert count_life(disk, DIR) == 0


@pytest.mark.parametrize("text", [b"", b"-1", b"two", b"\xff", b"1\n"])
def test_what_is_no_number_counts_as_none_and_is_replaced(disk: SimDisk, text: bytes) -> None:
    file = disk.open(f"{DIR}/{FILE_NAME}", create=True)
    file.pwrite(text, 0)
    file.close()
    assert count_life(disk, DIR) == 0
    assert count_life(disk, DIR) == 1


def test_a_number_has_an_end(disk: SimDisk) -> None:
    file = disk.open(f"{DIR}/{FILE_NAME}", create=True)
    file.pwrite(b"999999999", 0)
    file.close()
    assert [count_life(disk, DIR), count_life(disk, DIR)] == [999_999_999] * 2


@pytest.mark.parametrize("use", [count_life, end_cleanly])
def test_a_disk_that_refuses_it_stops_no_broker(use: Callable[[FileSystem, str], object]) -> None:
    class Refusing:
        def open(self, *_: object, **__: object) -> None:
            raise OSError(errno.EROFS, "read-only")

        def unlink(self, _: str) -> None:
            raise OSError(errno.EROFS, "read-only")

    assert use(Refusing(), DIR) in (0, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("deaths", [0, 1, 3])
def test_a_life_that_did_not_end_by_a_death_does_not_count(disk: SimDisk, deaths: int) -> None:
    for _ in range(deaths):
        count_life(disk, DIR)
    before = count_life(disk, DIR)
    uncount_life(disk, DIR, before)
    assert disk.listdir(DIR) == ([FILE_NAME] if deaths else [])
    assert count_life(disk, DIR) == deaths


def test_it_goes_with_the_topics(disk: SimDisk) -> None:
    old, new = [DIR, f"{DIR}/0", f"{DIR}/1"], [f"{DIR}/1", f"{DIR}/2"]
    for path in {*old, *new} - {DIR}:
        disk.mkdir(path)
    carry_over(disk, old, new)
    assert not any(disk.exists(f"{path}/{FILE_NAME}") for path in (*old, *new)), "a clean stop before"
    for path in (DIR, DIR, f"{DIR}/1"):
        count_life(disk, path)
    for _ in range(2):  # as after a kill
        carry_over(disk, old, new)
        assert [disk.exists(f"{path}/{FILE_NAME}") for path in old] == [False, False, True]
        assert [disk.read_file(f"{path}/{FILE_NAME}") for path in new] == [b"2", b"2"]
