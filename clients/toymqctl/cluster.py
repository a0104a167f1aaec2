"""``toymqctl cluster``: make a cluster, show it, and send its nodes requests through etcd. It connects to a node only to see
whether that answers."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import click

from toymq.click_support import Duration
from toymqctl.tables import as_json as json_option
from toymqctl.tables import print_json

if TYPE_CHECKING:  # no other command pays for loading it
    from toymq_py.replication.agreement import Agreement, LeaderKey
    from toymq_py.replication.etcd_client import EtcdOptions
    from toymq_py.replication.kept_places import KeptPlaces, Picture

T = TypeVar("T")


class _Closes(Protocol):
    async def close(self) -> None: ...


C = TypeVar("C", bound=_Closes)


class _Etcd:
    """Access to the etcd of a cluster: the addresses of etcd, the cluster's name and the group."""

    def __init__(
        self, cluster: str | None, group: str | None, urls: str | None, ca: str | None, cert: str | None, key: str | None
    ) -> None:
        self._name = cluster
        self.group = group
        self._urls = urls
        self._files = ca, cert, key

    @property
    def name(self) -> str:
        """The cluster's name. Raises: UsageError when none is given."""
        if self._name is None:
            raise click.UsageError("name the cluster with --cluster or TOYMQ_CLUSTER")
        return self._name

    def run(self, act: "Callable[[Agreement], Awaitable[T]]", group: str | None = None) -> T:
        """Run ``act`` on what etcd has of one group; ``group`` overrides ``--group``. Raises: UsageError; ToymqError."""
        from toymq_py.replication.agreement import DEFAULT_GROUP
        from toymq_py.replication.etcd_client import EtcdAgreement

        name = group or self.group or DEFAULT_GROUP
        return self._run(lambda options: EtcdAgreement(options, self.name, name), act)

    def in_group(self, act: "Callable[[Agreement], Awaitable[T]]", words: str) -> T:
        """Run ``act`` on what etcd has of one group, which ``--group`` must name if there are several. ``words``: the command,
        for an error.

        Raises: UsageError; ToymqError.
        """
        from toymqctl import cluster_requests

        picture = self.picture()
        if self.group is None:
            cluster_requests.check_alone(picture, words)
        else:
            cluster_requests.groups_of(picture, self.group)
        return self.run(act)

    def picture(self) -> "Picture":
        """Read the cluster's groups, and which group has which topic. Raises: UsageError; ToymqError."""
        found: Picture = self.placed(lambda places: places.read())
        return found

    def placed(self, act: "Callable[[KeptPlaces], Awaitable[T]]", group: str | None = None) -> T:
        """Run ``act`` on the record of which group has which topic, with the rights of a node of ``group``. Raises: UsageError;
        ToymqError."""
        from toymq_py.replication.agreement import DEFAULT_GROUP
        from toymq_py.replication.etcd_client import EtcdClient
        from toymq_py.replication.kept_places import KeptPlaces

        def kept(options: "EtcdOptions") -> KeptPlaces:
            return KeptPlaces(EtcdClient(options), self.name, group or DEFAULT_GROUP)

        return self._run(kept, act)

    def _run(self, make: "Callable[[EtcdOptions], C]", act: "Callable[[C], Awaitable[T]]") -> T:
        import asyncio

        from toymq_py.replication.etcd_client import EtcdOptions

        if self._urls is None:
            raise click.UsageError("name the members of etcd with --etcd or TOYMQ_ETCD: http://e1:2379,http://e2:2379")
        urls = [url.strip() for url in self._urls.split(",")]

        async def within() -> T:
            client = make(EtcdOptions(urls, *self._files))
            try:
                return await act(client)
            finally:
                await client.close()

        return asyncio.run(within())


@click.group(invoke_without_command=True, short_help="Make a cluster of copies, and look after it.")
@click.option("--cluster", "name", envvar="TOYMQ_CLUSTER", metavar="NAME", help="Name of the cluster; also TOYMQ_CLUSTER.")
@click.option("--group", envvar="TOYMQ_GROUP", metavar="NAME", help="Group of the cluster, of several; also TOYMQ_GROUP.")
@click.option("--etcd", "urls", envvar="TOYMQ_ETCD", metavar="URL,URL", help="Members of etcd; also TOYMQ_ETCD.")
@click.option("--etcd-ca", envvar="TOYMQ_ETCD_CA", help="PEM file of the CA that signed the certificates of etcd.")
@click.option("--etcd-cert", envvar="TOYMQ_ETCD_CERT", help="PEM file of a client certificate, if etcd requires one.")
@click.option("--etcd-key", envvar="TOYMQ_ETCD_KEY", help="PEM file of the client certificate's key.")
@json_option
@click.pass_context
def cluster(
    ctx: click.Context, name: str | None, group: str | None, urls: str | None, etcd_ca: str | None, etcd_cert: str | None,
    etcd_key: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Make a cluster of several copies, look at it, and move its leader. Without a command: show.

    \b
        export TOYMQ_CLUSTER=orders TOYMQ_ETCD=http://e1:2379,http://e2:2379,http://e3:2379
        toymqctl cluster init --replicas 2     once, before the first node starts
        toymqctl cluster                       the nodes, and what is waited for
        toymqctl cluster hand-over n2          let n2 lead, before n1 is stopped
        toymqctl cluster remove n1             forget a node that does not come back
        toymqctl cluster adopt replica.json    go on with a copy after etcd was lost
        toymqctl cluster --group b init        another group, which takes a part of the topics
        toymqctl cluster move orders b         move a topic to another group
    """
    ctx.obj = _Etcd(name, group, urls, etcd_ca, etcd_cert, etcd_key)
    if ctx.invoked_subcommand is None:
        ctx.invoke(show, as_json=as_json)
    elif as_json:
        raise click.UsageError("--json belongs to `toymqctl cluster show`, and stands behind it")


@cluster.command(short_help="Make the cluster, or a group of it.")
@click.option("--replicas", type=click.IntRange(2, 3), default=2, help="Copies of the data.")
@click.option(
    "--min-in-sync", type=click.IntRange(1, 3), show_default="1 of 2, 2 of 3",
    help="Copies, the leader's included, without which publishes are refused.",
)  # fmt: skip
@click.option("--ttl", "ttl_s", type=Duration(least_ms=2000), default="3s", help="After how long a dead leader is replaced.")
@click.pass_obj
def init(etcd: _Etcd, replicas: int, min_in_sync: int | None, ttl_s: float) -> None:
    """Make the cluster, or a group of it, once, before its first node starts. Nothing happens when it exists with the same
    settings."""
    from toymqctl import cluster_requests

    if etcd.group is None:
        cluster_requests.check_alone(etcd.picture(), "init")
    settings, made = etcd.run(lambda agreement: cluster_requests.init(agreement, replicas, min_in_sync, ttl_s))
    click.echo(
        f"{etcd.name}{f' group {etcd.group}' if etcd.group else ''} {'made' if made else 'exists'}:"
        f" {settings.replicas} replicas, min in sync {settings.min_in_sync},"
        f" ttl {settings.ttl_s:g}s"
    )
    if etcd.group is not None:
        for line in cluster_requests.left_to_do(etcd.picture(), etcd.group, made=made):
            click.echo(line)


@cluster.command(short_help="Show the nodes, and what is waited for.")
@json_option
@click.pass_obj
def show(etcd: _Etcd, as_json: bool = False) -> None:
    """Show the nodes, and what is waited for when something is missing: of each group, or of that of --group."""
    from toymqctl import cluster_requests, cluster_view

    picture = etcd.picture()
    groups = cluster_requests.groups_of(picture, etcd.group)
    now_s = datetime.now(UTC).timestamp()
    for number, group in enumerate(groups):
        found = etcd.run(cluster_requests.look_closely, group)
        placed = cluster_view.placed(picture, group)
        if as_json:
            print_json([cluster_view.as_json(etcd.name, found, now_s) | placed])
        else:
            click.echo("\n" * bool(number) + cluster_view.shown(etcd.name, found, now_s, placed))


@cluster.command("hand-over")
@click.argument("node", required=False, metavar="[NODE]")
@click.pass_obj
def hand_over(etcd: _Etcd, node: str | None) -> None:
    """Let NODE lead, or the one with the least lag. Publishers wait for less than a second; nothing is lost."""
    from toymqctl import cluster_requests

    words = " ".join(filter(None, ("hand-over", node)))
    _say_leader(*etcd.in_group(lambda agreement: cluster_requests.hand_over(agreement, node), words))


@cluster.command()
@click.argument("topic")
@click.argument("group")
@click.pass_obj
def move(etcd: _Etcd, topic: str, group: str) -> None:
    """Move TOPIC, with its dead letters, to GROUP.

    It waits until the topic is there, and says so while a group has no leader.

    Clients go on; publishers wait for less than a second. The move goes on when this command is interrupted, and through
    failovers of either group. To give up a move, name the group that TOPIC is still in. Partitioned topics cannot be moved.
    """
    from toymqctl import cluster_moves

    click.echo(etcd.placed(lambda kept: cluster_moves.move(kept, topic, group, click.echo)))


@cluster.command("remove-group")
@click.argument("group")
@click.pass_obj
def remove_group(etcd: _Etcd, group: str) -> None:
    """Take GROUP out of the cluster.

    Move or delete its topics first, and stop its nodes.
    """
    from toymqctl import cluster_moves

    click.echo(etcd.placed(lambda kept: cluster_moves.remove_group(kept, group), group))


@cluster.command()
@click.argument("node")
@click.pass_obj
def remove(etcd: _Etcd, node: str) -> None:
    """Forget NODE, which is stopped and does not come back. Its data directory is not touched."""
    from toymqctl import cluster_requests

    done = etcd.in_group(lambda agreement: cluster_requests.remove(agreement, node), f"remove {node}")
    click.echo(f"{node}: {done}")


@cluster.command(short_help="Let a node lead that is not in sync: it may lose messages.")
@click.argument("node")
@click.option("--i-accept-loss", "accepted", is_flag=True, help="Needed: messages may be lost.")
@click.pass_obj
def force(etcd: _Etcd, node: str, accepted: bool) -> None:
    """Let NODE lead though it is not in sync, when every copy that is in sync is lost.

    What was acknowledged and is not on NODE is lost. First make sure that the other nodes are off: one that still runs may
    acknowledge more, and that is lost, too.
    """
    from toymqctl import cluster_requests

    if not accepted:
        raise click.UsageError(
            f"{node} may lack messages that were acknowledged: switch the other nodes off, and add --i-accept-loss"
        )
    _say_leader(*etcd.in_group(lambda agreement: cluster_requests.force(agreement, node), f"force {node} --i-accept-loss"))


@cluster.command(short_help="Go on with one copy after etcd was lost.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.pass_obj
def adopt(etcd: _Etcd, file: Path) -> None:
    """Go on with the copy whose replica.json is FILE, after etcd was wiped or came back from an old snapshot.

    Stop all nodes first. Of all copies take the one with the highest "promised", of several the one that led last, and none
    with "copying": true. What was acknowledged and is not on it is lost. The other directories become new copies of it.
    """
    from toymqctl import cluster_requests

    replica_json = file.read_bytes()
    settings = etcd.in_group(lambda agreement: cluster_requests.adopt(agreement, replica_json), f"adopt {file}")
    click.echo(f"{etcd.name} begins anew as {settings.cluster} with {settings.adopted}: start its node, then the others")


def _say_leader(text: str, leader: "LeaderKey") -> None:
    click.echo(text)
    click.echo(f"{leader.member.name} leads: epoch {leader.epoch}, {leader.member.url}")
