"""The tier's thread: it pauses after errors, logs once that it fails and once that it works again, and ends."""

import asyncio
import logging
import subprocess
import sys
import threading

import pytest

from tests.support.broker_process import environment
from tests.support.buckets import MemoryBucket
from tests.support.tiers import PAYLOAD, TierRig
from toymq_py.errors import TierBehind
from toymq_py.runtime import tier_thread
from toymq_py.runtime.tier_thread import BACKOFF_MAX_S, INTERVAL_S, FetchThreads, Look, TierThread, look_at
from toymq_py.tier.bucket import BucketError
from toymq_py.tier.keys import segment_key
from toymq_py.tier.uploads import Uploads


class AwayBucket(MemoryBucket):
    def put_new(self, key: str, data: bytes) -> bool:
        raise BucketError("away")


def thread_of(rig: TierRig) -> TierThread:
    return TierThread(lambda: look_at(rig.broker), asyncio.new_event_loop(), rig.uploads, rig.broker.metrics, "file:///b")


def test_a_bucket_that_is_away_is_said_once_and_asked_seldom(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "toymq_py.tier")
    rig = TierRig(bucket := AwayBucket())
    rig.publish("t", *[PAYLOAD] * 12)
    rig.broker.topic("t").settings_queue.identify(lambda: None)
    rig.loop.drain()
    thread = thread_of(rig)
    for _ in range(9):
        assert thread.round(*look_at(rig.broker)) is None
    assert (thread._pause_s, rig.broker.metrics.tier_failing) == (BACKOFF_MAX_S, 1)
    rig.broker.metrics.tier_url = "file:///b"
    assert rig.broker.stats().items() >= {"tier": "file:///b", "tier_problem": "away"}.items()
    bucket.__class__ = MemoryBucket
    assert thread.round(*look_at(rig.broker)) is not None
    assert (thread._pause_s, rig.broker.metrics.tier_failing) == (INTERVAL_S, 0)
    assert rig.broker.stats()["tier_problem"] is None
    assert rig.broker.metrics.tier_uploaded_bytes_total == 2 * rig.broker.topic("t").log.segments[0].end
    thread._loop.close()
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING", "INFO"]
    assert caplog.messages == [
        "tier file:///b: away: what is sealed stays on the disk, and is tried again",
        "tier file:///b: works again",
        f"tier file:///b: 2 segments ({2 * rig.broker.topic('t').log.segments[0].end} bytes) uploaded",
    ]


def test_two_brokers_of_one_prefix_and_topic_are_a_problem_that_is_shown() -> None:
    """Found: the conflict was in the log only: doctor was ok while nothing more of the second broker was uploaded."""
    rig = TierRig(bucket := MemoryBucket())
    rig.publish("t", *[PAYLOAD] * 12)
    rig.broker.topic("t").settings_queue.identify(lambda: None)
    rig.loop.drain()
    for first_id in (0, 5):
        bucket.objects[segment_key(rig.place(), first_id)] = b"of the other one"
    thread = thread_of(rig)
    thread.round(*look_at(rig.broker))
    problem = rig.broker.metrics.tier_problem
    assert rig.broker.metrics.tier_failing == 1
    assert problem is not None
    assert problem.startswith(f"{segment_key(rig.place(), 0)} and 1 more in the bucket is not what this directory has")
    assert thread._pause_s == INTERVAL_S, "the bucket itself is there"
    rig.delete("t")
    thread.round(*look_at(rig.broker))
    thread._loop.close()
    assert (rig.broker.metrics.tier_failing, rig.broker.metrics.tier_problem) == (0, None)


def test_a_deletion_says_what_it_followed(caplog: pytest.LogCaptureFixture) -> None:
    """Found by a trial: "0 segments uploaded, 1 objects deleted" looked like a loss."""
    caplog.set_level(logging.INFO, "toymq_py.tier")
    rig = TierRig(MemoryBucket())
    rig.publish("t", *[PAYLOAD] * 12)
    rig.rounds(2)
    rig.purge("t")
    thread = thread_of(rig)
    thread.round(*look_at(rig.broker))
    thread._loop.close()
    said = "0 segments (0 bytes) uploaded, 2 objects deleted: retention, PURGE or DELETE removed them from the topic"
    assert caplog.messages[-1] == f"tier file:///b: {said}"


async def test_what_is_behind_refuses_publishes_until_the_bucket_has_it() -> None:
    rig = TierRig(bucket := AwayBucket())
    rig.publish("t", *[PAYLOAD] * 6)
    rig.broker.topic("t").settings_queue.identify(lambda: None)
    rig.loop.drain()
    size = rig.broker.topic("t").log.segments[0].end
    thread = TierThread(
        lambda: look_at(rig.broker, sizes=True), asyncio.get_running_loop(), rig.uploads, rig.broker.metrics, "file:///b",
        local_max_bytes=2 * size, fall_behind=rig.broker.space.fall_behind,
    )  # fmt: skip

    async def turn() -> None:
        look = look_at(rig.broker, sizes=True)
        thread.round(*look)
        thread.compare(look[0])
        await asyncio.sleep(0)

    await turn()
    rig.publish("t", *[PAYLOAD] * 10)
    assert not rig.broker.space.low, "as much as the limit, and not more"
    await turn()
    with pytest.raises(TierBehind, match="--tier-local-max"):
        rig.broker.topic_to_publish("u")
    (refused,) = rig.broker.topic("t").publish([b""], [PAYLOAD])
    assert refused.error.code == "TIER_BEHIND"  # type: ignore[union-attr]
    assert rig.take(rig.subscribe("t")), "delivery goes on"
    bucket.__class__ = MemoryBucket
    await turn()
    rig.publish("t", b"again")
    assert rig.broker.topic("t").next_id == 17


def test_what_was_sealed_before_a_bucket_was_ever_reached_may_be_in_it() -> None:
    class Unreachable(MemoryBucket):
        def identity(self) -> object:
            raise BucketError("away")

    rig = TierRig(MemoryBucket())
    rig.publish("t", *[PAYLOAD] * 12)
    rig.round()
    uploads = Uploads(rig.disk, Unreachable(), rig.clock.wall_ns)
    assert uploads.behind_bytes(look_at(rig.broker, sizes=True)[0]) == 0
    rig.publish("t", *[PAYLOAD] * 5)
    assert uploads.behind_bytes(look_at(rig.broker, sizes=True)[0]) == rig.broker.topic("t").log.segments[2].end


async def test_threads_of_fetches_run_jobs_and_tell_the_loop() -> None:
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    threads, on = FetchThreads(loop), []

    def job() -> None:
        on.append(threading.get_ident())
        raise ValueError("a bug")

    threads.offload(job, done.set)
    await done.wait()
    assert on != [threading.get_ident()]


async def test_it_asks_the_loop_and_ends_with_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier_thread, "INTERVAL_S", 0.001)
    rig, asked = TierRig(MemoryBucket()), asyncio.Event()
    loop, on = asyncio.get_running_loop(), threading.get_ident()

    def look() -> Look:
        assert threading.get_ident() == on, "the broker belongs to its loop"
        asked.set()
        return [], set()

    thread = TierThread(look, loop, rig.uploads, rig.broker.metrics, "file:///b")
    thread.start()
    await asyncio.wait_for(asked.wait(), 30)
    await asyncio.to_thread(thread.stop)
    assert not thread._thread.is_alive()


@pytest.mark.provokes_bugs
async def test_a_bug_counts_as_failing(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Found: the log said that nothing more is uploaded, but ``toymq_tier_failing`` was 0."""
    monkeypatch.setattr(tier_thread, "INTERVAL_S", 0.001)
    rig = TierRig(MemoryBucket())
    thread = TierThread(lambda: 1 // 0, asyncio.get_running_loop(), rig.uploads, rig.broker.metrics, "file:///b")  # type: ignore[return-value]
    thread.start()
    await asyncio.to_thread(thread._thread.join, 30)
    assert rig.broker.metrics.tier_failing == 1
    assert [record.message for record in caplog.records] == ["bug in the tier: nothing more is uploaded until a restart"]


def test_a_broker_without_a_tier_imports_nothing_of_it() -> None:
    unwanted = ("toymq_py.tier", "toymq_py.runtime.tier_thread", "obstore")
    program = f"import sys, toymq_py.daemon, toymq_py.cli.serve; print([n for n in sys.modules if n.startswith({unwanted})])"
    done = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
