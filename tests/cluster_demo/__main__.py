"""``make cluster-demo``: three members of etcd and three nodes on this machine; kills, a pause, and what was acknowledged.

etcd comes from PATH, else from Debian's package, which is unpacked into .cache and not installed.
"""

import asyncio
import signal
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import click

from tests.support.broker_process import environment
from tests.support.cluster_rig import CLUSTER, ClusterNode, ClusterRig, Load, running_cluster
from tests.support.etcd import find_etcd
from toymq_py.clock import SystemClock
from toymq_py.errors import EtcdError

MESSAGES = 200_000
WINDOW = 500
LOOK_S = 0.1


class Demo:
    def __init__(self, rig: ClusterRig) -> None:
        self._rig = rig

    async def run(self) -> int:
        rig = self._rig
        await self._settled()
        await self._show("three nodes, all in sync")
        async with Load(rig.urls, window=WINDOW) as load:
            await self._step(load, "the leader's process is killed", self._kill)
            await self._step(load, "the leader's machine loses its power", self._cut_power)
            await self._step(load, "a follower is cut off", self._pause, of_follower=True)
            await self._step(load, "the leader is asked to hand over", self._hand_over)
            await load.more(max(MESSAGES - len(load.acked), 0), within_s=600)
        await rig.in_sync(3)
        lost = await load.lost()
        click.echo(f"\nacknowledged {len(load.acked):,}, lost {len(lost):,}")
        return 1 if lost else 0

    async def _step(
        self, load: Load, what: str, act: Callable[[ClusterNode], Awaitable[None]], *, of_follower: bool = False
    ) -> None:
        """Say what is done, and to which node, and do it while messages are published."""
        await load.more(MESSAGES // 8, within_s=600)
        load.gaps.clear()
        began, leader = SystemClock.monotonic(), await self._rig.leader()
        follower = next(node for node in self._rig.nodes.values() if node is not leader)
        node = follower if of_follower else leader
        click.echo(f"\n{what}: {node.name}")
        await act(node)
        await load.more(WINDOW, within_s=600)
        click.echo(f"publishing went on after {max(load.gaps, default=0.0):.1f} s")
        await self._settled()
        await self._show(f"all in sync again, {SystemClock.monotonic() - began:.1f} s later")

    async def _settled(self) -> None:
        """Wait until all copies are in sync, and one node says that it leads, the others that they follow: a node that was
        killed is known as it was until its lease ends, and counts as in sync as long."""
        states: list[str] = []
        while states != ["FOLLOWING", "FOLLOWING", "LEADING"]:
            await self._rig.in_sync(3)
            with suppress(EtcdError):
                states = sorted(seat.state for seat in await self._rig.seats() if seat.present)
            await asyncio.sleep(LOOK_S)

    async def _kill(self, leader: ClusterNode) -> None:
        before = await self._rig.state()
        leader.signal_node(signal.SIGKILL)
        await self._rig.until("another term", lambda now: now.leader is not None and now.leader != before.leader)

    async def _cut_power(self, leader: ClusterNode) -> None:
        leader.kill_machine()
        await self._rig.leader(other_than=leader.name)
        await self._show("another one leads")
        await asyncio.to_thread(leader.start)

    async def _pause(self, follower: ClusterNode) -> None:
        follower.signal_node(signal.SIGSTOP)
        await self._rig.in_sync(2)
        await self._show("it is out of the in-sync set")
        follower.signal_node(signal.SIGCONT)

    async def _hand_over(self, leader: ClusterNode) -> None:
        await self._ctl("hand-over")

    async def _show(self, what: str) -> None:
        click.echo(f"\n-- {what}")
        await self._ctl("show")

    async def _ctl(self, *words: str) -> None:
        where = ["--cluster", CLUSTER, "--etcd", ",".join(self._rig.etcd.urls)]
        command = [sys.executable, "-m", "toymqctl", "cluster", *where, *words]
        await asyncio.to_thread(subprocess.run, command, env=environment(), check=False)


def main() -> int:
    if (missing := find_etcd()) is not None:
        click.echo(missing, err=True)
        return 2
    with (
        tempfile.TemporaryDirectory(prefix="toymq-cluster-", ignore_cleanup_errors=True) as directory,
        running_cluster(Path(directory), "--log-level", "warning", members=3, min_in_sync=2, ttl_s=3.0) as rig,
    ):
        return asyncio.run(Demo(rig).run())


if __name__ == "__main__":
    sys.exit(main())
