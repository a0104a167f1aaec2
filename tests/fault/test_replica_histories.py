"""Promotion is recovery: what a leader's clients were told holds on its follower's disk, at any moment, after any crash of it.

Contract: replication.md, 13.2. Each seed is a history as in ``test_histories``, of a leader with a follower that joins while
messages come and go. A life ends with a kill or a power cut, and the next broker opens the follower's disk when it was in
sync, as far as the stream had come there.
"""

import os
import random
from collections import Counter

import pytest

from tests.support.broker_histories import TOPIC, History, check, live, publish
from tests.support.fake_clock import FakeClock
from tests.support.replica_rig import ROOT, MeanwhileDisk, Pair, new_disk, shared_files
from tests.support.shares import one_in
from tests.support.sim_disk import SimDisk
from toymq_py.broker import Broker
from toymq_py.config.options import BrokerOptions
from toymq_py.errors import RequestError
from toymq_py.storage.commit.batch import CommitState

pytestmark = pytest.mark.usefixtures("without_log")

SEEDS = range(1200, 1400)
"""Each rule of ADR 0098 that is left out breaks one of them; ``make test`` runs a sixth."""


def options(rng: random.Random) -> BrokerOptions:
    return BrokerOptions(
        data_dir="/data/d", segment_bytes=4096, min_free_bytes=0, dedupe_keys=rng.choice([5, 65_536]),
        retain_acked_for_ms=rng.choice([0, 1_000_000]),
    )  # fmt: skip


def open_leader(disk: MeanwhileDisk, clock: FakeClock, rng: random.Random, chosen: BrokerOptions) -> tuple[Broker, Pair]:
    pair = Pair(disk, clock, rng)
    broker = Broker(chosen, fs=pair.fs, scheduler=pair.loop, clock=clock)
    broker.commit_place.is_loop = lambda records, size: rng.random() < 0.3  # type: ignore[method-assign]
    broker.open(1)
    return broker, pair


def churn(broker: Broker, rng: random.Random) -> None:
    """Publish to another topic, or delete, purge or configure it."""
    name = rng.choice(("u", "v"))
    choice = rng.random()
    try:
        if choice < 0.3:
            broker.topic_or_new(name).publisher.publish([b""], [rng.randbytes(rng.choice((10, 3000)))])
        elif choice < 0.4:
            broker.delete(name, lambda messages, error: None)
        elif choice < 0.5:
            broker.topic(name).purge(lambda count, error: None)
        elif choice < 0.6:
            broker.configure(name, {"ttl": rng.choice(("default", "100000"))}, lambda error: None)
    except RequestError:
        pass


def run_history(seed: int) -> Counter[str]:
    """Run a history and check it. Returns: how many messages were acknowledged, and how many times a follower took over."""
    rng = random.Random(seed)
    clock, history, chosen = FakeClock(), History(seed), options(rng)
    disk = new_disk(rng)
    found: Counter[str] = Counter()
    for _ in range(rng.randrange(2, 5)):
        broker, pair = open_leader(disk, clock, rng, chosen)
        check(broker, history)
        pair.join(within_call=rng.random() < 0.5)
        live(broker, pair.loop, disk, history, rng, also=lambda: churn(broker, rng))  # noqa: B023 (called here)
        if rng.random() < 0.1 and pair.follower is not None:
            pair.follower.disk.fail("sync", 1, 5)
            live(broker, pair.loop, disk, history, rng)
        history.waiting.clear()
        disk.meanwhile = None
        if pair.in_sync and pair.follower is not None:
            found["take-overs"] += 1
            disk = pair.follower.disk
        disk = disk.crash() if rng.random() < 0.6 else disk.kill()  # type: ignore[assignment]
    broker, _ = open_leader(disk, clock, rng, chosen)
    check(broker, history)
    found["acknowledged"] = len(history.records)
    return found


def a_little(broker: Broker, history: History, rng: random.Random) -> None:
    """One commit or one flush: nothing later writes the same files again and hides what the copy missed."""
    topic = broker.topic_or_new(TOPIC)
    if rng.random() < 0.5:
        publish(topic, history, rng)
    else:
        topic.subscribe(f"c{rng.random()}", None, window=1, visibility_s=5, wake=lambda _: True, ended=lambda _, __: None)
        topic.flush_offsets(lambda error: None)


def former_copy(disk: MeanwhileDisk, rng: random.Random) -> MeanwhileDisk:
    """A follower's disk from an earlier life: the leader's as a power cut left it, with changes of its own."""
    disk = disk.peek_crash(rng)  # type: ignore[assignment]
    files = [path for path in shared_files(disk) if not path.endswith("/")]
    for path in rng.sample(files, min(len(files), rng.randrange(4))):
        file = disk.open(f"{ROOT}/{path}")
        choice = rng.random()
        if choice < 0.4:
            file.truncate(rng.randint(0, file.size()))
        elif choice < 0.8:
            file.pwrite(rng.randbytes(rng.choice((1, 50))), rng.choice((file.size(), rng.randint(0, file.size()))))
        else:
            disk.unlink(f"{ROOT}/{path}")
    if files and rng.random() < 0.3:
        disk.mkdir(f"{ROOT}/topics/own")
        disk.open(f"{ROOT}/topics/own/{0:020d}.log", create=True).pwrite(b"its own", 0)
    return disk


def copy_fuzzily(seed: int) -> int:
    """Copy a leader's files while it writes. Returns: how many files the follower has in the end."""
    rng = random.Random(seed)
    clock, history, chosen = FakeClock(), History(seed), options(rng)
    disk = new_disk(rng)
    broker, pair = open_leader(disk, clock, rng, chosen)
    live(broker, pair.loop, disk, history, rng, faults=False, also=lambda: churn(broker, rng))
    former = former_copy(disk, rng) if rng.random() < 0.7 else None
    if rng.random() < 0.3:
        live(broker, pair.loop, disk, history, rng, faults=False, also=lambda: churn(broker, rng))
    pair.join(within_call=rng.random() < 0.7, former=former)
    if rng.random() < 0.3:
        live(broker, pair.loop, disk, history, rng, faults=False, also=lambda: churn(broker, rng))
    else:
        a_little(broker, history, rng)
    pair.drain()
    assert pair.in_sync, f"seed {seed}"
    assert pair.follower is not None
    disk.meanwhile = None
    leaders, followers = shared_files(disk), shared_files(pair.follower.disk)
    assert followers.keys() == leaders.keys(), f"seed {seed}"
    for path, content in leaders.items():
        assert followers[path] == content, f"seed {seed}: {path}"
    assert pair.tickets.oldest is None, f"seed {seed}: what is synced everywhere is still waited for"
    return len(followers)


@one_in(12)
def test_what_was_acknowledged_is_on_the_disk_of_a_follower_that_takes_over(share: int) -> None:
    found = sum(map(run_history, SEEDS[::share]), Counter())
    assert found["acknowledged"] > 500 // share, "the histories publish next to nothing: they would show nothing"
    assert found["take-overs"] > 100 // share, "hardly any follower takes over"


@one_in(12)
def test_a_copy_of_any_moments_and_what_happened_since_are_the_same_bytes(share: int) -> None:
    assert sum(map(copy_fuzzily, SEEDS[::share])) > 1000 // share


def test_a_follower_that_is_required_since_a_moment_ago_may_not_be_elected_yet() -> None:
    """Found: a follower was in sync from the moment at which its copy was acknowledged, and its disk did not yet have what
    clients had been told before that."""
    for seed in (1219, 1982, 2344):
        run_history(seed)


def lost_by_a_torn_batch(seed: int) -> list[int]:
    """A pair commits one batch of several pages, and either loses its power before any call of its disk. Returns: how many
    records each copy counts as lost then, opened alone."""
    rng = random.Random(seed)
    clock, chosen = FakeClock(), BrokerOptions(data_dir=ROOT, min_free_bytes=0)
    broker, pair = open_leader(new_disk(rng), clock, rng, chosen)
    pair.join()
    publisher = broker.topic_or_new(TOPIC).publisher
    publisher.publish([b""] * 3, [rng.randbytes(2000) for _ in range(3)])
    pair.drain()
    assert pair.in_sync
    assert pair.follower is not None
    (torn,) = publisher.publish([b""] * 9, [rng.randbytes(2000) for _ in range(9)])
    found = []
    for disk in (pair.disk, pair.follower.disk):
        cut: list[tuple[int, SimDisk]] = []

        def cut_here(disk: MeanwhileDisk = disk, cut: list[tuple[int, SimDisk]] = cut) -> None:
            cut.append((12 if torn.commit.state is CommitState.DONE else 3, disk.peek_crash(rng)))

        disk.meanwhile = cut_here
        found.append(cut)
    pair.drain()
    assert torn.commit.state is CommitState.DONE
    return [sum(lost_alone(after, acked, clock, rng, chosen) for acked, after in cut) for cut in found]


def lost_alone(disk: SimDisk, acked: int, clock: FakeClock, rng: random.Random, chosen: BrokerOptions) -> int:
    """Return how many records a copy counts as lost when it is opened alone; none of the first ``acked`` may be lost."""
    log = open_leader(disk, clock, rng, chosen)[0].topic(TOPIC).log  # type: ignore[arg-type]
    lost = [msg_id for first, last in log.lost for msg_id in range(first, last + 1)]
    assert all(msg_id >= acked for msg_id in lost), f"{lost} are lost, {acked} were acknowledged"
    assert all(log.read(msg_id, 1)[0] is not None for msg_id in range(acked)), f"{acked} were acknowledged"
    return len(lost)


def test_what_a_power_cut_tears_out_of_a_batch_was_acknowledged_by_no_copy() -> None:
    """Found: each copy may keep the end of the batch and lack its middle (ADR 0204)."""
    found = [lost_by_a_torn_batch(seed) for seed in range(20)]
    for copy in zip(*found, strict=True):
        assert any(copy), "no batch is torn in its middle: this shows nothing"


@pytest.mark.torture
def test_what_was_acknowledged_is_on_the_disk_of_a_follower_in_many_histories() -> None:
    for seed in range(10_000, 10_000 + int(os.environ.get("TOYMQ_HISTORIES", "100000")) // 2):
        run_history(seed)
        copy_fuzzily(seed)
