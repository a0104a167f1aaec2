"""A leader's office: the watch of its disk, and the renewal of its lease while recovery blocks the loop."""

import asyncio
import threading
import time
from typing import Any

import pytest

from tests.support.broker_rig import BrokerRig
from tests.support.fake_clock import FakeClock
from toymq_py.broker import Broker
from toymq_py.clock import SystemClock
from toymq_py.cluster import office
from toymq_py.cluster.office import BrokerOffice, JobWatch, OpeningLease
from toymq_py.errors import EtcdError
from toymq_py.storage.commit.sync_threads import run_guarded

WITHIN_S = 20.0


def test_the_job_that_began_first_counts() -> None:
    clock, told = FakeClock(), threading.Event()
    watch = JobWatch(clock)
    began = [threading.Event(), threading.Event()]
    run = watch.watched(run_guarded)

    def job(number: int) -> None:
        began[number].set()
        told.wait(WITHIN_S)

    assert watch.longest_s() == 0
    threads = []
    for number in range(2):
        threads.append(threading.Thread(target=run, args=(lambda number=number: job(number),)))
        threads[-1].start()
        assert began[number].wait(WITHIN_S)
        clock.advance(3)
    assert watch.longest_s() == 6
    told.set()
    for thread in threads:
        thread.join()
    assert watch.longest_s() == 0


def test_a_job_that_fails_is_over() -> None:
    watch = JobWatch(FakeClock())

    def broken(job: object) -> None:
        raise OSError("a bug of the runner")

    with pytest.raises(OSError, match="a bug"):
        watch.watched(broken)(lambda: None)
    assert watch.longest_s() == 0


def office_of(broker: Broker, clock: FakeClock) -> BrokerOffice:
    given: Any = None
    made = BrokerOffice(
        given, given, {}, given, given, clock, given, agreement=given, ttl_s=1.0, rows=given, reload_wire=given
    )  # fmt: skip
    made._broker = broker
    return made


def test_a_leader_that_steps_down_has_not_died() -> None:
    """Found: after two lost leases a node started as carefully as after two kills: one message of each consumer at a time."""
    rig = BrokerRig()
    for _ in range(3):
        office_of(rig.broker, rig.clock).step_down()
        rig.reopen(again=True)
        assert rig.broker.directory.unclean_ends == 0
    rig.reopen(again=True)
    office_of(rig.broker, rig.clock).step_down()
    rig.reopen(again=True)
    assert rig.broker.directory.unclean_ends == 1, "the kill before it counts still"


def test_one_that_steps_down_from_a_disk_that_hangs_does_not_wait_for_it() -> None:
    rig = BrokerRig()
    office = office_of(rig.broker, rig.clock)

    def hanging() -> None:
        rig.clock.advance(2)
        fault = rig.disk.fail("open", 1, 5)
        office.step_down()
        assert not fault.fired

    office._jobs.watched(run_guarded)(hanging)
    rig.disk.heal()
    rig.reopen(again=True)
    assert rig.broker.directory.unclean_ends == 1


class FakeAgreement:
    """Counts renewals, of which every second one gets no answer."""

    def __init__(self) -> None:
        self.renewed: list[int] = []
        self.closed = threading.Event()
        self.loops: set[asyncio.AbstractEventLoop] = set()

    async def renew(self, lease: int) -> None:
        self.renewed.append(lease)
        self.loops.add(asyncio.get_running_loop())
        if len(self.renewed) % 2:
            raise EtcdError("no answer")

    async def close(self) -> None:
        self.closed.set()


def until(holds: object) -> None:
    assert callable(holds)
    ends_at = SystemClock.monotonic() + WITHIN_S
    while not holds():
        assert SystemClock.monotonic() < ends_at
        time.sleep(0.005)


def test_a_lease_is_renewed_while_the_loop_is_held() -> None:
    agreement = FakeAgreement()
    with OpeningLease(lambda: agreement, 77, 0.06, SystemClock()):  # type: ignore[arg-type, return-value]
        until(lambda: len(agreement.renewed) >= 4)
    assert agreement.closed.wait(WITHIN_S)
    assert set(agreement.renewed) == {77}
    assert len(agreement.loops) == 1, "a loop of the thread's own"


def test_a_short_recovery_asks_etcd_nothing() -> None:
    made: list[FakeAgreement] = []

    def make() -> FakeAgreement:
        made.append(FakeAgreement())
        return made[-1]

    before = threading.active_count()
    with OpeningLease(make, 77, 60.0, SystemClock()):  # type: ignore[arg-type]
        pass
    until(lambda: threading.active_count() <= before)
    assert made == []


def test_a_recovery_that_takes_too_long_loses_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk may hang, and another copy could lead."""
    monkeypatch.setattr(office, "OPENING_S_MAX", 0.1)
    agreement = FakeAgreement()
    with OpeningLease(lambda: agreement, 77, 0.06, SystemClock()):  # type: ignore[arg-type, return-value]
        assert agreement.closed.wait(WITHIN_S)
