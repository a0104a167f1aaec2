"""``toymqctl cluster`` and real nodes: an operator moves the leader, removes a node that is gone, and forces the last copy."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.support.certificates import CERT, KEY
from tests.support.cluster_rig import CLUSTER, ClusterRig, Load, running_cluster
from tests.support.ctl import ok, refused
from tests.support.etcd import running_etcd
from tests.support.requirements import require
from toymqctl.cli import main as toymqctl

pytestmark = require("etcd", "proc")

Ctl = Callable[..., Result]
TLS = ("--replicate-cert", CERT, "--replicate-key", KEY, "--replicate-ca", CERT)
"""Of the link among the nodes."""


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[ClusterRig]:
    with running_cluster(tmp_path, *TLS, names=("n1", "n2")) as rig:
        asyncio.run(rig.in_sync(2))
        yield rig


def ctl_of(rig: ClusterRig) -> Ctl:
    def call(*arguments: str) -> Result:
        return CliRunner().invoke(toymqctl, ["cluster", "--cluster", CLUSTER, "--etcd", ",".join(rig.etcd.urls), *arguments])

    return call


def shown(ctl: Ctl) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ok(ctl("show", "--json")))
    return found


def test_an_operator_takes_a_cluster_through_its_days(pair: ClusterRig) -> None:
    """One story in one test, as a cluster takes seconds to start: hand over under load, lose a node, lose the other one, force,
    remove."""
    ctl = ctl_of(pair)

    # A hand-over under load loses nothing.
    before = shown(ctl)
    first, second = before["leader"], next(node["name"] for node in before["nodes"] if node["name"] != before["leader"])
    assert (before["troubles"], len(before["in_sync"])) == ([], 2)
    lost, failed = asyncio.run(_hand_over_under_load(pair, ctl, second))
    assert (lost, failed) == ([], [])
    assert shown(ctl)["leader"] == second
    refused(ctl("hand-over", second), 1, f"{second} leads already")
    asyncio.run(pair.in_sync(2))

    # The other node goes for good: the leader goes on alone, and the node is forgotten.
    refused(ctl("remove", first), 1, f"{first} runs: stop it first")
    pair.nodes[first].kill_machine()
    assert {each["name"]: each["answers"] for each in shown(ctl)["nodes"]} == {first: False, second: True}
    asyncio.run(pair.in_sync(1))
    asyncio.run(_until(ctl, lambda found: any("(last report " in each for each in found["troubles"])))
    refused(ctl("hand-over"), 1, "no follower that could take over is in sync")
    asyncio.run(_publish(pair, 50))

    # It comes back too late: the one that was in sync alone is gone with what it acknowledged.
    pair.nodes[second].kill_machine()
    pair.nodes[first].launch()  # it is not ready: there is no leader
    asyncio.run(_until(ctl, lambda found: found["leader"] is None and any(n["running"] for n in found["nodes"])))
    (said,) = shown(ctl)["troubles"]
    assert said.startswith(f"no leader: {second} (last report ")
    assert f"`toymqctl cluster force {first} --i-accept-loss`" in said
    refused(ctl("remove", second), 1, f"{second} is in sync and there is no leader")
    refused(ctl("force", first), 2, "add --i-accept-loss")
    assert f"{first} leads: epoch " in ok(ctl("force", first, "--i-accept-loss"))
    asyncio.run(_publish(pair, 50))
    assert ok(ctl("remove", second)) == f"{second}: forgotten\n"
    assert [node["name"] for node in shown(ctl)["nodes"]] == [first]


def test_a_node_that_cannot_serve_yet_says_what_it_waits_for(tmp_path: Path) -> None:
    """Found: a node that waited for its cluster to be created printed that it was ready."""
    with running_etcd(tmp_path) as etcd:
        rig = ClusterRig(tmp_path, etcd, ("n1",))
        node = rig.nodes["n1"]
        try:
            node.launch()
            line = node.read_ready_line()
            unmade = "ready to answer, not to serve; etcd knows no cluster orders: `toymqctl cluster init` makes one, data in "
            assert line is not None
            assert unmade in line, line
            node.take_ready_line(line)
            rig.make()
            asyncio.run(rig.leader())
            assert "etcd has the settings of the cluster: this node goes on" in node.log_path.read_text()
            node.restart()
            assert " ready, data in " in node.ready_line
            node.stop()
            etcd.members[0].kill()
            node.launch()
            line = node.read_ready_line()
            assert line is not None
            assert "ready to answer, not to serve; etcd does not answer /v3/kv/range: http://" in line, line
        finally:
            node.kill_machine()


async def _hand_over_under_load(pair: ClusterRig, ctl: Ctl, to: str) -> tuple[list[bytes], list[str]]:
    async with Load(pair.urls) as load:
        await load.more(200)
        handed = await asyncio.to_thread(ctl, "hand-over", to)  # stderr has what the load's client warns of, too
        assert handed.exit_code == 0, handed.output
        assert handed.stdout.startswith(f"hands over to {to}\n{to} leads: epoch ")
        await load.more(200)
    return await load.lost(), load.failed


async def _publish(pair: ClusterRig, count: int) -> None:
    async with Load(pair.urls, topic="later") as load:
        await load.more(count)


async def _until(ctl: Ctl, holds: Callable[[dict[str, Any]], bool]) -> None:
    """Wait until the output of ``show`` satisfies ``holds``."""
    async with asyncio.timeout(60):
        while not holds(await asyncio.to_thread(shown, ctl)):  # noqa: ASYNC110 (it asks another process)
            await asyncio.sleep(0.1)
