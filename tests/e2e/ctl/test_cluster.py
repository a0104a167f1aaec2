"""``toymqctl cluster`` on a real etcd, without nodes; what nodes answer is in tests/unit/ctl/test_cluster_requests.py."""

import asyncio
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner, Result

from tests.support.broker_process import environment
from tests.support.ctl import ok, refused, values
from tests.support.etcd import EtcdCluster, running_etcd
from tests.support.requirements import require
from toymq_py.replication.agreement import Member, Seat
from toymq_py.replication.etcd_client import EtcdAgreement, EtcdOptions
from toymqctl.cli import main as toymqctl

N1 = Member("1" * 32, "n1", "127.0.0.1:1", "127.0.0.1:2")
CLUSTERS = itertools.count()
ETCD_URL = "http://127.0.0.1:1"


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with running_etcd(tmp_path_factory.mktemp("etcd")) as running:
        yield running


@pytest.fixture
def cluster(etcd: EtcdCluster) -> Callable[..., Result]:
    """Each test has a cluster of its own."""
    name = f"c{next(CLUSTERS)}"

    def call(*arguments: str) -> Result:
        return CliRunner().invoke(toymqctl, ["cluster", "--cluster", name, "--etcd", ",".join(etcd.urls), *arguments])

    call.name = name  # type: ignore[attr-defined]
    return call


@require("etcd")
def test_a_cluster_from_nothing(cluster: Callable[..., Result], etcd: EtcdCluster) -> None:
    name = cluster.name  # type: ignore[attr-defined]
    refused(cluster(), 1, "etcd has no cluster of this name: `toymqctl cluster init` makes it")
    assert ok(cluster("init")) == f"{name} made: 2 replicas, min in sync 1, ttl 3s\n"
    assert ok(cluster("init")) == f"{name} exists: 2 replicas, min in sync 1, ttl 3s\n"
    refused(cluster("init", "--replicas", "3"), 1, "the cluster exists with --replicas 2")
    assert ok(cluster()) == ok(cluster("show"))
    assert ok(cluster()).splitlines() == [
        f"cluster {name}   in sync 0 of 2   min in sync 1   ttl 3s",
        "no copy yet: the first node that starts begins the group",
    ]

    async def lead() -> None:
        agreement = EtcdAgreement(EtcdOptions(etcd.urls), name, "g0")
        lease = await agreement.grant(60)
        await agreement.put_seat(Seat(N1, "5.0", "LEADING", None, 1), lease)
        assert (await agreement.begin(N1, lease)).done
        await agreement.close()

    asyncio.run(lead())
    (value,) = values(cluster("show", "--json"))
    assert {each["leader"] for each in values(cluster("--json"))} == {"n1"}, "show is what it does without a command"
    refused(cluster("--json", "init"), 2, "--json belongs to `toymqctl cluster show`")
    assert (value["leader"], value["in_sync"], value["troubles"]) == (
        "n1", [N1.replica],
        [
            "1 copy of 2 in sync; start another node",
            "n1 does not answer at 127.0.0.1:1 (Connection refused): if it is gone, its lease ends within 3 s; no other copy is"
            " in sync: start it",
        ],
    )  # fmt: skip
    refused(cluster("hand-over", "n1"), 1, "n1 leads already")
    refused(cluster("hand-over", "n2"), 1, "no node has the name n2; known: n1")
    refused(cluster("remove", "n1"), 1, "n1 runs: stop it first")
    refused(cluster("force", "n1", "--i-accept-loss"), 1, "n1 leads: nothing has to be forced")


@require("etcd")
def test_a_second_group_says_that_the_nodes_of_the_first_need_their_name(
    cluster: Callable[..., Result], etcd: EtcdCluster
) -> None:
    """Found: `init` of a second group did not tell that the first group's nodes need --group from then on; they went on without
    it, and no new topic could be made."""
    name = cluster.name  # type: ignore[attr-defined]
    ok(cluster("init"))

    async def lead() -> None:
        agreement = EtcdAgreement(EtcdOptions(etcd.urls), name, "g0")
        assert (await agreement.begin(N1, await agreement.grant(60))).done
        await agreement.close()

    asyncio.run(lead())
    restart = (
        "group g0 has not been served with --group yet: restart its nodes with --group g0, followers first; its topics go on"
        " meanwhile. Until then no new topic is placed in any group, and lists of other groups lack its topics"
    )
    assert ok(cluster("--group", "b", "init")).splitlines() == [
        f"{name} group b made: 2 replicas, min in sync 1, ttl 3s", "start its nodes with --group b", restart,
    ]  # fmt: skip
    assert ok(cluster("--group", "b", "init")).splitlines()[1:] == [restart]


@require("etcd")
def test_settings_can_be_chosen(cluster: Callable[..., Result]) -> None:
    refused(cluster("init", "--min-in-sync", "3"), 2, "--min-in-sync 3 is more than --replicas 2")
    assert ok(cluster("init", "--replicas", "3", "--ttl", "5s")).endswith("made: 3 replicas, min in sync 2, ttl 5s\n")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["show"], "name the members of etcd with --etcd or TOYMQ_ETCD"),
        (["--etcd", ETCD_URL, "show"], "name the cluster with --cluster or TOYMQ_CLUSTER"),
        (["--etcd", ETCD_URL, "--cluster", "a/b"], "invalid name"),
        (["--etcd", "e1:2379", "--cluster", "a"], "is not the URL of an etcd member"),
        (["--etcd", "https://e1", "--etcd-ca", "/not/there", "--cluster", "a"], "certificates for etcd"),
        (["--etcd", ETCD_URL, "--cluster", "a", "force", "n1"], "add --i-accept-loss"),
        (["--etcd", ETCD_URL, "--cluster", "a", "init", "--ttl", "1s"], "write 2000ms"),
        (["--etcd", ETCD_URL, "--cluster", "a", "init", "--replicas", "4"], "4 is not in the range"),
    ],
)
def test_wrong_usage(arguments: list[str], text: str) -> None:
    refused(CliRunner().invoke(toymqctl, ["cluster", *arguments]), 2, text)


def test_without_etcd_it_is_one_line() -> None:
    result = CliRunner().invoke(toymqctl, ["cluster", "--etcd", f"{ETCD_URL},http://127.0.0.1:2", "--cluster", "a"])
    refused(result, 1, f"etcd does not answer /v3/kv/range: {ETCD_URL}: ")
    assert "http://127.0.0.1:2: " in result.stderr
    assert result.stderr.endswith("; see to its members (`etcdctl endpoint health`), their disks, and the network to them;"
                                  " toymq goes on by itself\n")  # fmt: skip


def test_other_commands_do_not_load_what_it_needs() -> None:
    program = (
        "import json, sys, toymqctl.cli as cli; [cli.main.get_command(None, name) for name in cli.COMMANDS];"
        "print(json.dumps([name for name in sys.modules if 'replication' in name]))"
    )
    done = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
