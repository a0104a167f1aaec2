"""``--min-free-bytes``: publishing is refused before the disk is full. Contract: storage.md, "Append and group commit"."""

import pytest

from tests.support.fake_clock import FakeClock
from toymq_py.errors import DiskLow, TierBehind
from toymq_py.storage.commit.space_guard import FULL_UNTIL_BYTES, SpaceGuard


class Free:
    """A file system with a settable amount of free space, and nothing else."""

    def __init__(self, free: int) -> None:
        self.free = free

    def free_bytes(self, path: str) -> int:
        return self.free


def test_the_reserve_is_refused_and_given_back_at_twice_the_mark(caplog: pytest.LogCaptureFixture) -> None:
    disk, clock = Free(250), FakeClock()
    guard = SpaceGuard(disk, "/data", 100, clock)  # type: ignore[arg-type]
    told: list[bool] = []
    guard.on_low = lambda: told.append(True)
    guard.admit()
    assert guard.check(1)
    assert not guard.getting_low()
    disk.free = 150
    assert guard.getting_low()
    clock.advance(0.02)
    assert guard.check(1), "below twice the mark it looks each time from here on"
    disk.free = 99
    assert not guard.check(1)
    guard.refuse()
    guard.refuse()
    assert told == [True]
    assert caplog.text.count("publishing is refused") == 1
    disk.free = 200
    with pytest.raises(DiskLow, match="100B are free"):
        guard.admit()
    clock.advance(0.2)
    guard.admit()
    assert not guard.low


def test_a_disk_without_a_mark_is_full_until_twice_what_did_not_fit_is_free() -> None:
    disk = Free(0)
    guard = SpaceGuard(disk, "/data", 0, FakeClock())  # type: ignore[arg-type]
    assert not guard.is_full(), "nothing was refused"
    for size, until in ((10, FULL_UNTIL_BYTES), (FULL_UNTIL_BYTES, 2 * FULL_UNTIL_BYTES)):
        disk.free = 0
        guard.overflowed(size)
        guard.admit()
        disk.free = until - 1
        assert guard.is_full()
        disk.free = until
        assert not guard.is_full()
    disk.free = 0
    assert not guard.is_full(), "none was refused since"
    guard.overflowed(10)
    guard.fitted()
    assert not guard.is_full()


def test_a_bucket_that_is_behind_refuses_publishes_and_makes_no_room(caplog: pytest.LogCaptureFixture) -> None:
    disk, clock = Free(1000), FakeClock()
    guard = SpaceGuard(disk, "/data", 100, clock)  # type: ignore[arg-type]
    told: list[bool] = []
    guard.on_change.append(lambda: told.append(guard.low))
    guard.fall_behind("5 bytes lack")
    guard.fall_behind("6 bytes lack")
    for admit in (guard.admit, guard.admit_topic):
        with pytest.raises(TierBehind, match="6 bytes lack; publish later") as refused:
            admit()
        assert refused.value.retryable
    assert not guard.is_low()
    assert not guard.getting_low(), "no acked segment goes before its time"
    disk.free = 50
    clock.advance(0.2)
    with pytest.raises(DiskLow, match="100B are free"):
        guard.admit()
    guard.fall_behind(None)
    assert guard.low, "the disk is full, too"
    disk.free = 1000
    clock.advance(0.2)
    guard.admit()
    assert told == [True, False]
    assert caplog.text.count("publishing is refused") == 2


def test_a_low_disk_is_noticed_without_a_publish(caplog: pytest.LogCaptureFixture) -> None:
    """Found in review: after a start on a full disk /readyz said ready until the first publish was refused."""
    disk, clock = Free(99), FakeClock()
    guard = SpaceGuard(disk, "/data", 100, clock)  # type: ignore[arg-type]
    told: list[bool] = []
    guard.on_low = lambda: told.append(True)
    assert guard.is_low()
    assert told == [True]
    with pytest.raises(DiskLow, match="100B are free"):
        guard.admit()
    disk.free = 199
    clock.advance(0.2)
    assert guard.is_low()
    disk.free = 200
    assert guard.is_low(), "a look holds for a moment"
    clock.advance(0.2)
    assert not guard.is_low()
    assert "publishing resumes" in caplog.text
    guard.admit()


def test_far_from_the_mark_a_look_holds_for_a_moment_and_a_part_of_the_room() -> None:
    disk, clock = Free(1700), FakeClock()
    guard = SpaceGuard(disk, "/data", 100, clock)  # type: ignore[arg-type]
    assert guard.check(1)
    disk.free = 50
    assert guard.check(100), "a sixteenth of the room above the mark"
    assert not guard.check(1), "used up"
    disk.free = 1700
    assert guard.check(1)
    disk.free = 50
    clock.advance(0.019)
    assert guard.check(1)
    clock.advance(0.001)
    assert not guard.check(1)


def test_without_a_mark_nothing_is_refused() -> None:
    guard = SpaceGuard(Free(0), "/data", 0, FakeClock())  # type: ignore[arg-type]
    assert guard.check(1)
    assert not guard.getting_low()
    assert not guard.is_low()
