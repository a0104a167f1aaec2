"""Whether a commit runs on the event loop or in a thread: the rule, and the committer that follows it."""

import errno
import random

import pytest

from tests.support.log_rig import LogRig
from tests.support.sim_disk import SimDisk
from toymq_py.storage.commit.commit_place import (
    BYTES_MAX,
    COMMITS_AVERAGED,
    LONG_S,
    QUICK_S,
    RECORDS_MAX,
    TRUST_AFTER,
    TRUST_AFTER_MAX,
    CommitPlace,
)


def trusted() -> CommitPlace:
    """Return a rule that has seen a quick disk for long."""
    place = CommitPlace("auto")
    for _ in range(TRUST_AFTER):
        commit(place, QUICK_S, on_loop=False)
    return place


def commit(place: CommitPlace, seconds: float, *, on_loop: bool, records: int = 1) -> None:
    if not on_loop:
        place.begun()
    place.ended(seconds, records, on_loop=on_loop)


def test_the_loop_waits_for_a_lone_small_commit_of_a_quick_disk() -> None:
    place = trusted()
    assert place.is_loop(1, 300)
    assert place.is_loop(RECORDS_MAX, BYTES_MAX)


def test_a_thread_waits_for_a_batch_of_many_or_much() -> None:
    place = trusted()
    assert not place.is_loop(RECORDS_MAX + 1, 300)
    assert not place.is_loop(1, BYTES_MAX + 1)


def test_a_thread_waits_while_something_else_is_to_be_done() -> None:
    place = trusted()
    place.announce()  # of another log
    assert not place.is_loop(1, 300)
    place.start()
    place.begun()  # of another log: their syncs would be one after the other
    assert not place.is_loop(1, 300)
    place.ended(0.0, 1, on_loop=False)
    place.crowded = lambda: True
    assert not place.is_loop(1, 300)


def test_a_disk_is_trusted_after_many_commits_without_a_long_one() -> None:
    place = CommitPlace("auto")
    for _ in range(TRUST_AFTER - 1):
        assert not place.is_loop(1, 300)
        commit(place, 0.0002, on_loop=False)
    commit(place, 2 * LONG_S, on_loop=False)
    for _ in range(TRUST_AFTER):
        assert not place.is_loop(1, 300)
        commit(place, 0.0002, on_loop=False)
    assert place.is_loop(1, 300)


def test_a_thread_waits_while_batches_have_many_records_on_average() -> None:
    """With 64 publishers a batch of four records follows one of sixty, whose publishers are just being answered and will send
    more."""
    place, on_loop = trusted(), 0
    for n in range(1000):
        records = 4 if n % 2 else 60
        is_loop = place.is_loop(records, 300)
        on_loop += is_loop
        commit(place, 0.0002, on_loop=is_loop, records=records)
    assert on_loop <= RECORDS_MAX, "only until there are many on average"
    waited = 0
    while not place.is_loop(1, 300):
        commit(place, 0.0002, on_loop=False)
        waited += 1
    assert waited <= 2 * COMMITS_AVERAGED, "the last publisher is soon alone"


def test_a_single_burst_does_not_last() -> None:
    place = trusted()
    for _ in range(2):
        commit(place, 0.0002, on_loop=False, records=100_000)
    assert place.is_loop(1, 300)


def test_the_loop_waits_for_slow_commits_for_a_bounded_time() -> None:
    """A disk turns from very quick to slow."""
    for seconds in (0.0011, 0.002, 0.005, LONG_S, 0.011, 1.0):
        place = CommitPlace("auto")
        for _ in range(10 * TRUST_AFTER):
            commit(place, 0.0, on_loop=False)
        held = 0.0
        for _ in range(1000):
            is_loop = place.is_loop(1, 300)
            held += seconds * is_loop
            commit(place, seconds, on_loop=is_loop)
        if seconds > LONG_S:
            assert held == seconds, "it was foreseen after the first"
        else:
            assert seconds < held < 3 * COMMITS_AVERAGED * QUICK_S, seconds
        assert not place.is_loop(1, 300)


def share_on_the_loop(slow_p: float, seconds: float) -> float:
    """Return the share of commits that run on the loop, for a disk with single slow ones."""
    rng, place, on_loop = random.Random(7), CommitPlace("auto"), 0
    for _ in range(20_000):
        is_loop = place.is_loop(1, 300)
        on_loop += is_loop
        commit(place, seconds if rng.random() < slow_p else 0.0003, on_loop=is_loop)
    return on_loop / 20_000


def test_a_disk_with_a_slow_sync_now_and_then_is_trusted() -> None:
    """Found: with one sync in 200 above a millisecond, as on a shared disk, hardly any commit ran on the loop."""
    assert share_on_the_loop(0.005, 0.003) > 0.97
    assert share_on_the_loop(0.05, 0.003) > 0.95
    assert share_on_the_loop(0.02, 0.008) > 0.9
    assert share_on_the_loop(0.2, 0.008) < 0.1
    assert share_on_the_loop(0.005, 0.03) < 0.1


def test_a_disk_that_surprises_again_and_again_is_trusted_ever_less() -> None:
    place, waits = trusted(), []
    for _ in range(9):
        assert place.is_loop(1, 300)
        commit(place, 1.0, on_loop=True)
        waited = 0
        while not place.is_loop(1, 300):
            commit(place, 0.0, on_loop=False)
            waited += 1
        waits.append(waited)
    assert waits == [128, 256, 512, 1024, 2048, 4096, 4096, 4096, 4096]
    assert max(waits) == TRUST_AFTER_MAX
    for _ in range(16 * TRUST_AFTER_MAX):
        commit(place, 0.0, on_loop=True)
    commit(place, 1.0, on_loop=False)
    waited = 0
    while not place.is_loop(1, 300):
        commit(place, 0.0, on_loop=False)
        waited += 1
    assert waited == TRUST_AFTER_MAX // 2, "it was quick for long"


@pytest.mark.parametrize(("mode", "expected"), [("thread", False), ("inline", True)])
def test_the_option_overrules(mode: str, expected: bool) -> None:
    place = CommitPlace(mode)  # type: ignore[arg-type]
    place.announce()
    assert place.is_loop(1000, 1 << 30) is expected


@pytest.mark.parametrize("seed", range(20))
def test_whatever_the_disk_does_a_slow_commit_on_the_loop_comes_after_many_quick_ones(seed: int) -> None:
    """The disk has a schedule of latencies: quick, slow for a while, with single slow ones, or random."""
    rng = random.Random(seed)
    held: list[float] = []
    place = CommitPlace("auto", held.append)
    took: list[float] = []
    slow_p = 0.0
    for n in range(20_000):
        if n % 500 == 0:
            slow_p = rng.choice((0.0, 0.0, 0.001, 0.02, 1.0))
        seconds = rng.choice((0.05, 0.004)) if rng.random() < slow_p else 0.0002
        on_loop = place.is_loop(1, 300)
        commit(place, seconds, on_loop=on_loop)
        if on_loop:
            assert max(took[-TRUST_AFTER:]) <= LONG_S, "it could be foreseen"
            assert sum(took[-COMMITS_AVERAGED:]) < 2 * COMMITS_AVERAGED * QUICK_S, "they were slow"
        took.append(seconds)
    assert len(held) > 1000
    assert sum(seconds > LONG_S for seconds in held) < len(held) / TRUST_AFTER
    assert sum(held) < len(held) * QUICK_S


class SlowDisk(SimDisk):
    """A disk whose syncs take ``sync_s``."""

    rig: LogRig
    sync_s = 0.0002

    def _record(self, op: str, path: str, args: tuple[object, ...]) -> int | None:
        if op == "sync" and path.endswith(".log"):
            self.rig.clock.advance(self.sync_s)
        return super()._record(op, path, args)


def slow_rig(**options: object) -> tuple[LogRig, SlowDisk]:
    disk = SlowDisk(random.Random(1))
    disk.mkdir("/data/topics")
    disk.sync_dir("/data")
    rig = LogRig(disk=disk, segment_bytes=1 << 20, **options)
    disk.rig = rig
    return rig, disk


def test_a_disk_that_becomes_slow_in_the_middle_holds_the_loop_once() -> None:
    rig, disk = slow_rig(commit="auto")
    for _ in range(200):
        rig.publish(b"x")
    assert len(rig.held) == pytest.approx(200 - TRUST_AFTER, abs=2)
    rig.held.clear()
    disk.sync_s = 0.5
    for _ in range(50):
        rig.publish(b"x")
    assert rig.held == pytest.approx([0.5])
    disk.sync_s = 0.0002
    rig.held.clear()
    for _ in range(2 * TRUST_AFTER):
        rig.publish(b"x")
    assert not rig.held
    rig.publish(b"x")
    assert len(rig.held) == 1
    assert len(rig.payloads()) == 200 + 50 + 2 * TRUST_AFTER + 1


@pytest.mark.parametrize("mode", ["thread", "inline"])
def test_each_way_writes_syncs_and_answers_in_this_order(mode: str) -> None:
    rig = LogRig(commit=mode)
    for payload in (b"first", b"second"):
        rig.publish(payload)  # now the size of the file is known
    rig.held.clear()
    answered: list[int] = []
    rig.disk.trace.clear()
    (appended,) = rig.append(b"third")
    appended.commit.add_waiter(lambda: answered.append(len(rig.disk.trace)))
    rig.loop.drain()
    assert [op for op, *_ in rig.disk.trace] == ["pwrite", "sync"]
    assert answered == [2]
    assert len(rig.held) == (mode == "inline")


def test_what_is_committed_on_the_loop_is_told_behind_what_a_thread_committed_before_it() -> None:
    """Found: a later batch, committed on the loop, was reported before an earlier one from a thread, and took a producer's
    highest sequence back."""
    rig = LogRig()
    for payload in (b"a", b"b"):
        rig.publish(payload)
    rig.append(b"c")
    rig.loop.step()  # it is with a thread now
    rig.append(b"d")
    rig.place.is_loop = lambda records, size: True  # type: ignore[method-assign]
    rig.loop.drain()
    assert len(rig.held) == 1
    assert [first_id for first_id, *_ in rig.committed] == [0, 1, 2, 3]


def test_answers_are_written_before_the_loop_waits_again() -> None:
    """Found: the many answers of a batch waited for the sync of a small one behind it."""
    rig = LogRig()
    for payload in (b"a", b"b"):
        rig.publish(payload)
    steps: list[str] = []
    rig.append(b"c")[0].commit.add_waiter(lambda: rig.loop.soon(lambda: steps.append(f"answered after {rig.syncs()} syncs")))
    rig.loop.step()  # a thread has it
    rig.append(b"d")
    rig.place.is_loop = lambda records, size: True  # type: ignore[method-assign]
    rig.loop.drain()
    assert steps == ["answered after 3 syncs"]
    assert rig.syncs() == 4


def test_what_begins_a_segment_or_reserves_space_is_for_a_thread() -> None:
    rig = LogRig(commit="inline", segment_bytes=4096)
    for _ in range(100):
        rig.publish(b"x" * 100)
    assert rig.sealed >= 3
    assert 50 < len(rig.held) <= 100 - 1 - rig.sealed
    rig.disk.trace.clear()
    sealed = rig.sealed
    while rig.sealed == sealed:
        rig.held.clear()
        rig.disk.trace.clear()
        rig.publish(b"x" * 100)
    assert not rig.held, "the one that rolled"
    assert len(rig.payloads()) > 100


def test_a_failed_commit_on_the_loop_is_refused_as_one_of_a_thread() -> None:
    rig = LogRig(commit="inline")
    for payload in (b"first", b"second"):
        rig.publish(payload)
    rig.held.clear()
    rig.disk.fail("sync", 1, errno.EIO, path=".log")
    (appended,) = rig.publish(b"third")
    assert len(rig.held) == 1
    assert appended.commit.error is not None
    assert rig.committer.failed is not None
    assert rig.payloads() == [b"first", b"second"]
