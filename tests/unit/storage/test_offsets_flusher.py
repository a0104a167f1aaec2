"""The debouncer: when state goes to disk, how often, and what a failing disk changes. Contract: storage.md."""

import errno
import logging
import random
from collections.abc import Callable

import pytest

from tests.support.fake_clock import FakeClock
from tests.support.sim_disk import SimDisk
from tests.support.sim_loop import SimLoop
from toymq_py.errors import NoSuchTopic, RequestError
from toymq_py.storage import offsets
from toymq_py.storage.offsets import OffsetsState
from toymq_py.storage.offsets_flusher import DEBOUNCE_S, JOBS_MAX, SOURCES_PER_RUN, OffsetsFlusher


class Source:
    def __init__(self, name: str, rig: "Rig") -> None:
        self.path = f"/data/topics/{name}"
        self.value = 0
        self.flushed: list[int] = []
        self.refused = 0
        self.snapshot_cost_s = 0.0
        self._rig = rig

    def change(self) -> None:
        self.value += 1
        self._rig.flusher.mark(self)

    def offsets_snapshot(self) -> OffsetsState:
        self._rig.clock.advance(self.snapshot_cost_s)
        return OffsetsState(0, self.value)

    def offsets_flushed(self, state: OffsetsState) -> None:
        self.flushed.append(state.next_id)

    def offsets_refused(self, error: OSError) -> None:
        self.refused += 1

    def on_disk(self) -> int:
        return offsets.load(self._rig.disk, self.path).state.next_id


class Rig:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.disk = SimDisk(random.Random(1))
        self.disk.mkdir("/data/topics")
        self.loop = SimLoop(self.clock, random.Random(1))
        self.flusher = OffsetsFlusher(self.disk, self.loop, self.clock)

    def source(self, name: str = "a") -> Source:
        self.disk.mkdir(f"/data/topics/{name}")
        return Source(name, self)


def test_a_change_is_on_disk_100_ms_later_and_not_before() -> None:
    rig = Rig()
    source = rig.source()
    source.change()
    rig.loop.advance(0.05)
    source.change()
    rig.loop.advance(0.049)
    assert source.flushed == []
    rig.loop.advance(0.001)
    assert source.flushed == [2], "one file for both changes"
    assert source.on_disk() == 2
    rig.loop.advance(10)
    assert source.flushed == [2], "nothing changed, nothing is written"


def test_a_change_while_it_is_written_is_written_again() -> None:
    rig = Rig()
    source = rig.source()
    source.change()
    rig.clock.advance(DEBOUNCE_S)
    rig.flusher.flush(source, lambda error: None)
    rig.loop._timers.sort()
    _, _, call = rig.loop._timers.pop()
    call()  # the snapshot is taken, the write is on its way
    source.change()
    rig.loop.advance(1)
    assert source.flushed[-1] == 2
    assert source.on_disk() == 2


def test_a_flush_that_is_waited_for_begins_at_once() -> None:
    rig = Rig()
    source, other = rig.source("a"), rig.source("b")
    other.change()
    told: list[OSError | RequestError | None] = []
    source.value = 7
    rig.flusher.flush(source, told.append)
    rig.loop.advance(0)
    assert told == [None]
    assert source.on_disk() == 7
    rig.loop.advance(DEBOUNCE_S)
    assert other.on_disk() == 1


def test_flushing_takes_at_most_five_percent() -> None:
    rig = Rig()
    source = rig.source()
    source.snapshot_cost_s = 0.02
    for _ in range(1000):
        source.change()
        rig.loop.advance(0.01)
    busy = len(source.flushed) * 0.02
    assert busy <= 0.06 * 30
    assert len(source.flushed) >= 20


def test_a_failed_flush_is_said_once_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    source, fine = rig.source("a"), rig.source("b")
    fault = rig.disk.fail("pwrite", 1, errno.ENOSPC, sticky=True, path="/a/")
    told: list[OSError | RequestError | None] = []
    with caplog.at_level(logging.ERROR):
        source.change()
        fine.change()
        rig.flusher.flush(source, told.append)
        rig.loop.advance(5)
    assert [error.errno for error in told if isinstance(error, OSError)] == [errno.ENOSPC]
    assert source.refused == fault.fired
    assert fine.on_disk() == 1, "others are written"
    assert caplog.text.count("not written") == 1
    assert fault.fired >= 4
    rig.disk.heal()
    rig.loop.advance(1.1)
    assert source.on_disk() == 1
    source.change()
    rig.loop.advance(1)
    assert source.on_disk() == 2


def test_a_deleted_topic_is_not_written_any_more() -> None:
    rig = Rig()
    source = rig.source()
    source.change()
    told: list[OSError | RequestError | None] = []
    rig.flusher.flush(source, told.append)
    rig.flusher.discard(source)
    assert [error.code for error in told if isinstance(error, NoSuchTopic)] == ["NO_SUCH_TOPIC"], "nothing was written"
    rig.loop.advance(1)
    assert not rig.disk.exists(f"{source.path}/offsets.json")


def test_a_topic_deleted_while_it_is_written() -> None:
    rig = Rig()
    source = rig.source()
    rig.flusher.flush(source, lambda error: None)
    rig.loop._timers.sort()
    rig.loop._timers.pop()[2]()
    quiet: list[bool] = []
    rig.flusher.discard(source)
    rig.flusher.when_quiet(lambda: quiet.append(True))
    assert quiet == [], "a file of it is being written"
    rig.loop.advance(1)
    assert quiet == [True]
    assert source.flushed == []
    rig.flusher.when_quiet(lambda: quiet.append(True))
    assert quiet == [True, True], "at once when nothing is written"


def test_the_last_flush_writes_everything_once() -> None:
    rig = Rig()
    sources = [rig.source(f"t{n}") for n in range(5)]
    for source in sources:
        source.change()
    done: list[bool] = []
    rig.flusher.flush_all(lambda: done.append(True))
    rig.loop.advance(0.001)
    assert done == [True]
    assert [source.on_disk() for source in sources] == [1] * 5
    rig.flusher.flush_all(lambda: done.append(True))
    rig.loop.advance(0)
    assert done == [True, True], "with nothing to write too"


def test_the_last_flush_does_not_wait_for_a_disk_that_is_full() -> None:
    rig = Rig()
    source = rig.source()
    rig.disk.fail("open", 1, errno.ENOSPC, sticky=True)
    source.change()
    done: list[bool] = []
    rig.flusher.flush_all(lambda: done.append(True))
    rig.loop.advance(0.01)
    assert done == [True]


def test_the_last_flush_waits_for_what_changed_meanwhile() -> None:
    rig = Rig()
    source, late = rig.source("a"), rig.source("b")
    source.change()
    done: list[int] = []
    rig.flusher.flush_all(lambda: done.append(late.on_disk()))
    rig.loop._timers.sort()
    for _, _, call in rig.loop._timers[:1]:
        call()
    late.change()
    rig.loop.advance(1)
    assert done == [1]


def test_a_topic_that_cannot_be_written_delays_no_other() -> None:
    rig = Rig()
    failing, fine = rig.source("a"), rig.source("b")
    rig.disk.fail("pwrite", 1, errno.EIO, sticky=True, path="/a/")
    failing.change()
    rig.loop.advance(0.15)
    for n in range(1, 20):
        fine.change()
        rig.loop.advance(DEBOUNCE_S)
        assert fine.on_disk() == n, "100 ms later, as ever"
    assert failing.refused <= 4


def test_what_is_waited_for_is_written_side_by_side_and_the_rest_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: a new consumer on a thousand topics took as long as a thousand syncs one after the other."""
    rig = Rig()
    jobs: list[int] = []
    offload = rig.loop.offload

    def counting(job: Callable[[], None], done: Callable[[], None]) -> None:
        jobs.append(len(jobs))
        offload(job, done)

    monkeypatch.setattr(rig.loop, "offload", counting)
    sources = [rig.source(str(n)) for n in range(20)]
    told: list[object] = []
    for source in sources:
        source.value = 1
        rig.flusher.flush(source, told.append)
    rig.loop.advance(0)
    assert (told, len(jobs)) == ([None] * 20, JOBS_MAX)
    assert [source.on_disk() for source in sources] == [1] * 20
    jobs.clear()
    for source in sources:
        source.change()
    rig.loop.advance(5)
    assert [source.on_disk() for source in sources] == [2] * 20
    assert len(jobs) == 1, "nothing waits for it: one thread is enough"


def test_very_many_are_written_in_runs_and_none_later_than_it_must() -> None:
    rig = Rig()
    sources = [rig.source(str(n)) for n in range(SOURCES_PER_RUN + 5)]
    for source in sources:
        source.change()
    waited = rig.source("waited")
    told: list[object] = []
    rig.loop.advance(DEBOUNCE_S / 2)
    rig.flusher.flush(waited, told.append)
    rig.loop.advance(DEBOUNCE_S / 2 + 0.001)
    assert told == [None]
    assert [len(source.flushed) for source in sources] == [1] * len(sources)


def test_a_flusher_that_is_abandoned_writes_nothing_more_and_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    sources = [rig.source(str(n)) for n in range(5)]
    for source in sources:
        source.change()
    assert rig.flusher.unsaved == 5
    rig.flusher.abandon()
    rig.loop.advance(5)
    assert [(source.on_disk(), source.flushed) for source in sources] == [(0, [])] * 5
    assert caplog.text == ""
