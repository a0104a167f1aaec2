"""The runbook for an etcd that lost its data: wiped, or restored from an old snapshot. Real nodes, a real etcd;
docs/clusters.md."""

import asyncio
import json
import shutil
import urllib.request
from collections.abc import Callable
from pathlib import Path

from click.testing import CliRunner, Result

from tests.support.cluster_rig import CLUSTER, MONOTONIC, WAIT_S, ClusterNode, ClusterRig, Load, running_cluster
from tests.support.ctl import ok, refused
from tests.support.etcd import EtcdCluster
from tests.support.requirements import require
from toymqctl.cli import main as toymqctl

pytestmark = require("etcd", "proc")


def test_a_cluster_goes_on_after_its_etcd_was_restored_and_after_it_was_wiped(tmp_path: Path) -> None:
    with running_cluster(tmp_path, names=("n1", "n2")) as rig:
        (etcd,) = rig.etcd.members
        asyncio.run(rig.in_sync(2))
        saved = tmp_path / "saved"

        def save() -> None:
            etcd.kill()
            shutil.copytree(etcd.data_dir, saved)
            etcd.start()
            etcd.wait_until_it_answers()

        def restore() -> None:
            shutil.rmtree(etcd.data_dir)
            shutil.copytree(saved, etcd.data_dir)

        def wipe() -> None:
            shutil.rmtree(etcd.data_dir)

        save()
        _write_into(rig.etcd)
        load = asyncio.run(_publish_over_a_failover(rig))
        next(node for node in rig.nodes.values() if not node.running).start()
        asyncio.run(rig.in_sync(2))
        best = _lose(rig, restore)
        asyncio.run(_no_node_leads(rig))
        _until_show_says(rig, "see the runbook")
        refused(_ctl(rig)("adopt", str(_replica_json(best))), 1, "stop all nodes first")
        _stop(rig)
        _adopt(rig, best)

        more = asyncio.run(_publish(rig))
        best = _lose(rig, wipe)
        _stop(rig)
        refused(_ctl(rig)("adopt", str(_replica_json(best))), 1, "`toymqctl cluster init` makes it")
        ok(_ctl(rig)("init", "--replicas", "2", "--ttl", "2s"))
        _adopt(rig, best)
        assert [asyncio.run(each.lost()) for each in (load, more)] == [[], []]


def _until_show_says(rig: ClusterRig, words: str) -> None:
    """Wait until ``show`` contains the words: a node reports every second what it waits for."""
    until = MONOTONIC() + WAIT_S
    while words not in (said := _ctl(rig)("show").output):
        assert MONOTONIC() < until, said


def _write_into(etcd: EtcdCluster) -> None:
    """Write so many revisions that an etcd which lost them cannot reach them again before nodes look."""
    for _ in range(100):
        body = json.dumps({"key": "YQ==", "value": "YQ=="}).encode()
        urllib.request.urlopen(urllib.request.Request(f"{etcd.urls[0]}/v3/kv/put", body), timeout=WAIT_S).close()


def _ctl(rig: ClusterRig) -> Callable[..., Result]:
    def call(*arguments: str) -> Result:
        return CliRunner().invoke(toymqctl, ["cluster", "--cluster", CLUSTER, "--etcd", ",".join(rig.etcd.urls), *arguments])

    return call


async def _publish_over_a_failover(rig: ClusterRig) -> Load:
    """Publish over a failover, so that etcd's old data is wrong: another node leads, in a later epoch."""
    await rig.in_sync(2)
    leader = await rig.leader()
    async with Load(rig.urls) as load:
        await load.more(100)
        leader.terminate()
        assert await asyncio.to_thread(leader.wait) == 0
        await rig.leader(other_than=leader.name)
        await load.more(100)  # on one copy alone
    return load


async def _publish(rig: ClusterRig) -> Load:
    async with Load(rig.urls, topic="more") as load:
        await load.more(100)
    return load


def _lose(rig: ClusterRig, harm: Callable[[], None]) -> ClusterNode:
    """Stop etcd, do harm to its data, start it. Returns: the node whose copy has everything, the one with the highest
    ``promised``, as the runbook chooses it."""
    etcd = rig.etcd.members[0]
    etcd.kill()
    harm()
    etcd.start()
    etcd.wait_until_it_answers()
    return max(rig.nodes.values(), key=lambda node: int(json.loads(_replica_json(node).read_text())["promised"]))


def _replica_json(node: ClusterNode) -> Path:
    return node.data_dir / "replica.json"


async def _no_node_leads(rig: ClusterRig) -> None:
    """Wait until every node has seen that etcd went back, and waits for an operator."""
    until = MONOTONIC() + WAIT_S
    while not all("see the runbook" in node.log_path.read_text() for node in rig.nodes.values()):
        assert MONOTONIC() < until, rig.logs()
        await asyncio.sleep(0.05)
    await rig.until("the leader of the snapshot is over", lambda state: state.leader is None)


def _stop(rig: ClusterRig) -> None:
    for node in rig.nodes.values():
        if node.running:
            node.terminate()
            node.wait()


def _adopt(rig: ClusterRig, best: ClusterNode) -> None:
    said = ok(_ctl(rig)("adopt", str(_replica_json(best))))
    assert "start its node, then the others" in said
    rig.start()
    asyncio.run(rig.in_sync(2))
    assert (asyncio.run(rig.leader())) is best
