"""``make bench-replicated``: a pair beside a single node, in turn, and the resync of a follower that has lost its disk.

Everything runs on this machine, from source: what two copies cost, not what two machines reach. Goals: replication.md, section
15. Failovers are timed by ``make torture-cluster``.
"""

import asyncio
import shutil
import statistics
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from tests.support.cluster_rig import MONOTONIC, ClusterNode, ClusterRig
from tests.support.etcd import find_etcd, running_etcd
from toymq_bench import machine, process, report
from toymq_bench.broker import Broker, StartedBroker
from toymq_bench.traffic import Plan, Traffic, fill, measure

LOADS = {"1 topic": Traffic(16, 256, 256, topics=1), "16 topics": Traffic(16, 256, 256, topics=16)}
RESYNC_SIZE = 16_384
"""Bytes of a message of what is copied."""
RESYNC_S_MAX = 600.0
SHOWN = {
    "publishes_per_s": "publishes/s", "broker_cpu_us": "CPU of the broker, us a publish", "publish_p50_ms": "publish p50, ms",
    "publish_p99_ms": "publish p99, ms", "rss_mb": "RSS of the broker, MB",
    "follower_cpu_us": "CPU of the follower, us a publish",
    "follower_rss_mb": "RSS of the follower, MB",
}  # fmt: skip

Runs = dict[str, list[float]]


class Leader(Broker):
    """The leader of a pair. Each look at its CPU is one at its follower's, too."""

    def __init__(self, leader: ClusterNode, follower: ClusterNode) -> None:
        super().__init__("127.0.0.1", leader.port, leader.node_pid)
        self._follower = follower.node_pid
        self.follower_cpu_s: list[float] = []

    def cpu_s(self) -> float:
        self.follower_cpu_s.append(process.cpu_s([self._follower]))
        return super().cpu_s()

    def follower_rss_mb(self) -> float:
        return process.rss_bytes([self._follower]) / 1e6


@contextmanager
def pair(directory: Path, members: int = 3) -> Iterator[tuple[ClusterRig, ClusterNode, ClusterNode]]:
    """A rig, its leader and its follower, in sync."""
    with running_etcd(directory, members) as etcd:
        rig = ClusterRig(directory, etcd, ("n1", "n2"), executed=True)
        with rig.running(min_in_sync=1, ttl_s=3.0):
            asyncio.run(rig.in_sync(2))
            leader = asyncio.run(rig.leader())
            (follower,) = (node for node in rig.nodes.values() if node is not leader)
            yield rig, leader, follower


def measured_pair(directory: Path, traffic: Traffic, plan: Plan, label: str) -> dict[str, float]:
    with pair(directory) as (_, leader, follower):
        broker = Leader(leader, follower)
        values = measure(broker, traffic, plan, label)
        began, ended = broker.follower_cpu_s[-2:]
        values["follower_cpu_us"] = (ended - began) / (values["publishes_per_s"] * plan.seconds) * 1e6
        values["follower_rss_mb"] = broker.follower_rss_mb()
    return values


def compare(parent: Path, plan: Plan, runs: int) -> tuple[dict[str, Runs], dict[str, Runs]]:
    """The values of all runs by load and metric: of the single node, and of the pair."""
    single: dict[str, Runs] = {name: defaultdict(list) for name in LOADS}
    double: dict[str, Runs] = {name: defaultdict(list) for name in LOADS}
    for number in range(runs):
        for name, traffic in LOADS.items():
            with StartedBroker(parent, ()) as broker:
                found = measure(broker, traffic, plan, f"single, {name}, run {number + 1}")
            for metric, value in found.items():
                single[name][metric].append(value)
            directory = Path(tempfile.mkdtemp(prefix="toymq-pair-", dir=parent))
            try:
                found = measured_pair(directory, traffic, plan, f"pair, {name}, run {number + 1}")
            finally:
                shutil.rmtree(directory, ignore_errors=True)
            for metric, value in found.items():
                double[name][metric].append(value)
    return single, double


def resync(parent: Path, size_mb: int, rate: float, plan: Plan) -> dict[str, float]:
    """A follower comes back with an empty disk, while a leader with so much data publishes at this rate."""
    directory = Path(tempfile.mkdtemp(prefix="toymq-resync-", dir=parent))
    try:
        with pair(directory) as (rig, leader, follower):
            broker = Broker("127.0.0.1", leader.port, leader.node_pid)
            fill(broker, "filled", max(size_mb * 1_000_000 // RESYNC_SIZE, 1), RESYNC_SIZE, f"{size_mb} MB")
            traffic = Traffic(16, 256, 256, topics=16, rate=rate)
            before = measure(broker, traffic, plan, "half load, in sync")
            follower.kill_machine()
            asyncio.run(rig.in_sync(1))
            shutil.rmtree(follower.data_dir)
            took: list[float] = []

            def come_back() -> None:
                began = MONOTONIC()
                follower.start()
                while not took and MONOTONIC() - began < RESYNC_S_MAX:
                    with suppress(AssertionError):  # not within the minute that a test has
                        asyncio.run(rig.in_sync(2))
                        took.append(MONOTONIC() - began)

            thread = threading.Thread(target=come_back)
            thread.start()
            during = []
            while thread.is_alive() or not during:
                during.append(measure(broker, traffic, Plan(min(plan.seconds, 3.0), 0.1), "half load, resync"))
            thread.join()
            if not took:
                raise click.ClickException(f"the follower is not in sync after {RESYNC_S_MAX:g} s:\n{rig.logs()[-3000:]}")
        return {
            "resync_s": took[0], "before_p99_ms": before["publish_p99_ms"],
            "during_p99_ms": max(values["publish_p99_ms"] for values in during),
        }  # fmt: skip
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def lines(single: dict[str, Runs], double: dict[str, Runs]) -> Iterator[str]:
    """Medians, how they compare, and the goals."""
    for name in LOADS:
        one, two = single[name], double[name]
        yield f"\n{name}, 16 connections x 256, {len(one['publishes_per_s'])} runs each, in turn: medians (least to most)"
        rows = []
        for metric, title in SHOWN.items():
            cells = [
                f"{statistics.median(found):,.2f} ({min(found):,.2f} to {max(found):,.2f})" if found else "-"
                for found in (one.get(metric, []), two.get(metric, []))
            ]
            times = statistics.median(two[metric]) / statistics.median(one[metric]) if one.get(metric) else 0.0
            rows.append([title, *cells, f"{times:.2f}" if times else ""])
        yield from report.table(["", "single", "pair", "pair/single"], rows)
        cpu = statistics.median(two["follower_cpu_us"]) / statistics.median(two["broker_cpu_us"])
        yield f"follower's CPU / leader's: {cpu:.2f}"
    yield "\ngoals: CPU of the leader <= 1.15 x single; publishes/s of a pair on one machine >= 0.60 x; follower's CPU <= 0.5 x"
    yield "the leader's, its RSS <= 60 MB; resync of 1 GB <= 30 s, p99 of publishes meanwhile <= 2 x"


@click.command()
@click.option("--runs", type=click.IntRange(1), default=5, show_default=True, help="Of each load, single and pair in turn.")
@click.option("--seconds", type=click.FloatRange(0.1), default=5.0, show_default=True, help="Measured time of each run.")
@click.option("--resync-mb", type=click.IntRange(0), default=1000, show_default=True, help="What a follower lacks; 0: skip.")
@click.option("--dir", "parent", type=click.Path(path_type=Path, file_okay=False), help="Where the disks are; default: /tmp's.")
def main(runs: int, seconds: float, resync_mb: int, parent: Path | None) -> None:
    """Measure what a second copy costs."""
    if (missing := find_etcd()) is not None:
        raise click.ClickException(missing)
    with tempfile.TemporaryDirectory(prefix="toymq-replicated-", dir=parent, ignore_cleanup_errors=True) as directory:
        click.echo(machine.line(machine.facts(Path(directory))))
        plan = Plan(seconds, min(seconds, 1.0))
        single, double = compare(Path(directory), plan, runs)
        for line in lines(single, double):
            click.echo(line)
        if resync_mb:
            rate = max(statistics.median(double["16 topics"]["publishes_per_s"]) / 2, 100.0)
            found = resync(Path(directory), resync_mb, rate, plan)
            click.echo(
                f"\nresync of {resync_mb} MB at {rate:,.0f} publishes/s: {found['resync_s']:.1f} s; p99 of publishes "
                f"{found['before_p99_ms']:.1f} ms in sync, {found['during_p99_ms']:.1f} ms meanwhile"
            )


if __name__ == "__main__":
    sys.exit(main())
