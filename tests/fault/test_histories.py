"""Random histories of the whole broker on the simulated disk, with faults, kills and power cuts.

Each seed is one history: a few lives of a broker, ended by ``kill`` (the page cache survives) or ``crash`` (any legal part of
what was not synced is gone). After each start everything that was ever acknowledged must be there. The test fails when the
fsync is left out of the broker, when OK comes before the commit, when a torn tail is kept, or when an ack is forgotten."""

import errno
import os
import random

import pytest

from tests.support.broker_histories import CONSUMER, TOPIC, History, check, live, subscribe
from tests.support.fake_clock import FakeClock
from tests.support.shares import one_in
from tests.support.sim_disk import SimDisk
from tests.support.sim_loop import SimLoop
from toymq_py.broker import Broker
from toymq_py.config.options import BrokerOptions
from toymq_py.storage.commit.batch import CommitState

pytestmark = pytest.mark.usefixtures("without_log")


def run_history(seed: int) -> int:
    """Run a random history of the broker and check it. Returns: how many messages were acknowledged."""
    rng = random.Random(seed)
    clock = FakeClock()
    disk = SimDisk(rng)
    history = History(seed)
    options = BrokerOptions(
        data_dir="/data/d",
        segment_bytes=4096,
        min_free_bytes=0,
        dedupe_keys=rng.choice([5, 65_536]),
        retain_acked_for_ms=rng.choice([0, 1_000_000]),
    )
    for _ in range(rng.randrange(2, 4)):
        loop = SimLoop(clock, rng)
        broker = Broker(options, fs=disk, scheduler=loop, clock=clock)
        broker.open(1)
        check(broker, history)
        live(broker, loop, disk, history, rng)
        history.waiting.clear()
        disk = disk.crash() if rng.random() < 0.6 else disk.kill()
    broker = Broker(options, fs=disk, scheduler=SimLoop(clock, rng), clock=clock)
    broker.open(1)
    check(broker, history)
    return len(history.records)


@one_in(12)
def test_nothing_acknowledged_is_lost(share: int) -> None:
    acknowledged = sum(map(run_history, range(0, 500, share)))
    assert acknowledged > 1000 // share, "the histories publish next to nothing: they would show nothing"


@pytest.mark.torture
def test_nothing_acknowledged_is_lost_in_many_histories() -> None:
    for seed in range(10_000, 10_000 + int(os.environ.get("TOYMQ_HISTORIES", "100000"))):
        run_history(seed)


def test_a_sync_and_the_cut_after_it_fail() -> None:
    """Found: after a failed sync the next process answered DUP for a message that was only in the page cache; then the power
    was cut."""
    run_history(49_184)


def test_a_head_that_is_forgotten_before_its_file_is_gone() -> None:
    """Found: the next process took the segment for that of another log, and counted it as lost."""
    run_history(813)


def test_the_same_seed_is_the_same_history() -> None:
    assert run_history(4711) == run_history(4711)


def test_retention_after_a_roll_that_failed() -> None:
    """Found: the sealed segment was the last one, and retention removed it, so there was no segment to append to."""
    rng = random.Random(1)
    disk, clock = SimDisk(rng), FakeClock()
    loop = SimLoop(clock, rng)
    options = BrokerOptions(data_dir="/data/d", segment_bytes=4096, min_free_bytes=0, retain_acked_for_ms=0)
    broker = Broker(options, fs=disk, scheduler=loop, clock=clock)
    broker.open(1)
    topic = broker.topic_or_new(TOPIC)
    subscription = subscribe(topic, rng)
    topic.publisher.publish([b""], [bytes(3000)])
    loop.drain()
    while (delivery := subscription.take(10_000)) is not None:
        topic.ack(CONSUMER, [(delivery.first_id, delivery.last_id)])
    fault = disk.fail("open", 1, errno.ENOSPC, path=".log")
    loop.advance(2)
    assert fault.fired, "retention rolls the active segment, and the new one cannot be made"
    assert topic.log.segments, "the last segment stays, whatever is acked"
    again = topic.publisher.publish([b""], [b"after"])[0]
    loop.drain()
    assert (again.commit.state, again.first_id) == (CommitState.DONE, 1)
