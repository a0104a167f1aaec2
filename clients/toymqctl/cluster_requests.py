"""What ``toymqctl cluster`` reads in etcd, and its requests to nodes, which are keys in etcd. Contract: replication.md, section
10; ADR 0105.

A request is a key that expires after ``REQUEST_TTL_S``. The node that it is for takes it and answers, or nothing happens. This
module never writes the keys that decide which replica leads: only nodes do (ADR 0097, item 6).
"""

import asyncio
import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

from toymq.url import parse_urls
from toymq_py.errors import ConfigError, EtcdError, ToymqError
from toymq_py.names import some_of
from toymq_py.replication.agreement import (
    DEFAULT_GROUP,
    REQUEST_TTL_S,
    Agreement,
    ClusterSettings,
    GroupState,
    LeaderKey,
    Member,
    ReplicaId,
    Request,
    RequestKind,
    Seat,
)
from toymq_py.replication.kept_places import Group, Picture
from toymq_py.replication.replica_file import decode
from toymq_py.units import agreeing

NEW_LEADER_S = 30.0
"""How long a command waits for the leader that it asked for: recovery may take seconds."""
ANSWER_S = 1.0
"""Time for a node to accept a connection."""


class Refused(ToymqError):
    """A command makes no sense, or would do harm, in the present state of the cluster; or a node declined it."""

    code = "REFUSED"


@dataclass(frozen=True, slots=True)
class Cluster:
    """All that etcd has about a cluster, or about one group of it."""

    settings: ClusterSettings
    state: GroupState
    seats: list[Seat]
    silent: Mapping[ReplicaId, str] = field(default_factory=dict)
    """What happened at the addresses of nodes that etcd knows as running, and that do not answer; see ``look_closely``."""

    def find(self, name: str) -> Seat:
        """Return the node with a name or a replica id; of two nodes with the same name the running one. Raises: Refused."""
        found = [seat for seat in self.seats if name in (seat.member.name, seat.member.replica)]
        running = [seat for seat in found if seat.present]
        if len(running or found) == 1:
            return (running or found)[0]
        if found:
            ids = ", ".join(seat.member.replica for seat in running or found)
            raise Refused(f"several replicas have the name {name}: give the id of one: {ids}")
        names = ", ".join(seat.member.name for seat in self.seats) or "none"
        raise Refused(f"no node has the name {name}; known: {names}")


async def look(agreement: Agreement) -> Cluster:
    """Read a cluster. Raises: Refused when there is none; EtcdError."""
    settings = await agreement.settings()
    if settings is None:
        raise Refused("etcd has no cluster of this name: `toymqctl cluster init` makes it")
    return Cluster(settings, await agreement.read(), await agreement.seats())


async def look_closely(agreement: Agreement) -> Cluster:
    """Read a cluster, and try which of its nodes accept a connection: for etcd a dead node lives until its lease ends. No bytes
    are sent to them. Raises: Refused when there is no cluster; EtcdError."""
    cluster = await look(agreement)
    running = [seat.member for seat in cluster.seats if seat.present]
    found = await asyncio.gather(*(_what_fails(member.url) for member in running))
    silent = {member.replica: why for member, why in zip(running, found, strict=True) if why is not None}
    return replace(cluster, silent=silent)


async def _what_fails(url: str) -> str | None:
    """Try to connect to HOST:PORT. Returns: the error's text; None when the connection was made."""
    try:
        (address,) = parse_urls(url)
        async with asyncio.timeout(ANSWER_S):
            _, writer = await asyncio.open_connection(address.host, address.port)
    except TimeoutError:
        return f"no answer within {ANSWER_S:g} s"
    except OSError as error:
        return os.strerror(error.errno) if error.errno and isinstance(error, ConnectionError) else str(error)
    writer.close()
    return None


def groups_of(picture: Picture, wanted: str | None) -> list[str | None]:
    """Return the names of the groups to show; [None] for a cluster without named groups. Raises: Refused when ``wanted`` is not
    one of the groups."""
    made = sorted(name for name, group in picture.groups.items() if group.made)
    if wanted is not None:
        if made and wanted not in made:
            raise Refused(f"there is no group {wanted}; there are {some_of(made)}")
        return [wanted]
    return [None] if made in ([], [DEFAULT_GROUP]) and not picture.groups.get(DEFAULT_GROUP, Group()).placed else list(made)


def check_alone(picture: Picture, words: str) -> None:
    """Check that a cluster has no groups, since a command without ``--group`` would be ambiguous. ``words``: the command, for
    the error. Raises: Refused."""
    made = sorted(name for name, group in picture.groups.items() if group.made)
    others = [name for name in made if name != DEFAULT_GROUP]
    if others:
        one = "NAME" if words.startswith("init") else others[-1]
        raise Refused(f"this cluster has groups ({', '.join(made)}): name one, `toymqctl cluster --group {one} {words}`")


def without_group(group: str) -> str:
    """Say what is left to do for a group that may have topics, but whose nodes have never run with ``--group``."""
    return (
        f"group {group} has not been served with --group yet: restart its nodes with --group {group}, followers first; its"
        " topics go on meanwhile. Until then no new topic is placed in any group, and lists of other groups lack its topics"
    )


def left_to_do(picture: Picture, group: str, *, made: bool) -> list[str]:
    """Say what remains to be done after ``init`` of a group, at its own nodes and at those of other groups."""
    lines = [f"start its nodes with --group {group}"] if made else []
    for other in picture.unplaced():
        if other != group:
            lines.append(without_group(other))
    return lines


async def init(agreement: Agreement, replicas: int, min_in_sync: int | None, ttl_s: float) -> tuple[ClusterSettings, bool]:
    """Make a cluster. Returns: its settings, and whether it was made now: one with the same settings may exist already.

    Raises: ConfigError; Refused when one with other settings exists; EtcdError.
    """
    if min_in_sync is None:
        min_in_sync = 1 if replicas <= 2 else 2
    if min_in_sync > replicas:
        raise ConfigError(f"--min-in-sync {min_in_sync} is more than --replicas {replicas}")
    wanted = ClusterSettings(str(uuid.uuid4()), replicas, min_in_sync, ttl_s)
    try:
        if (await agreement.create_settings(wanted)).done:
            return wanted, True
    except EtcdError:
        if (kept := await agreement.settings()) is None:
            raise
    else:
        kept = await agreement.settings()
    if kept is None:
        raise EtcdError("etcd had the cluster, and has it no more")
    if (kept.replicas, kept.min_in_sync, kept.ttl_s) != (replicas, min_in_sync, ttl_s):
        raise Refused(
            f"the cluster exists with --replicas {kept.replicas} --min-in-sync {kept.min_in_sync} --ttl {kept.ttl_s:g}s"
        )
    return kept, kept == wanted


async def hand_over(agreement: Agreement, name: str | None) -> tuple[str, LeaderKey]:
    """Hand leadership over to another node. ``name``: None for the node with the least lag. Returns: the answer, and the new
    leader.

    Raises: Refused; EtcdError.
    """
    cluster = await look(agreement)
    leader = cluster.state.leader
    if leader is None:
        raise Refused("there is no leader that could hand over: `toymqctl cluster show` says what is waited for")
    target = None if name is None else cluster.find(name).member
    if target is not None and target.replica == leader.member.replica:
        raise Refused(f"{target.name} leads already")
    text = await _ask(agreement, cluster, RequestKind.HAND_OVER, None if target is None else target.replica)
    return text, await _new_leader(agreement, leader.epoch)


async def remove(agreement: Agreement, name: str) -> str:
    """Forget a node that does not come back. Returns: what was done.

    Raises: Refused; EtcdError.
    """
    cluster = await look(agreement)
    seat = cluster.find(name)
    if seat.present:
        gone = [each.member.replica for each in cluster.seats if each.member.name == name and not each.present]
        of_gone = f"; of another node of this name, which does not run, give the id: {', '.join(gone)}" if gone else ""
        raise Refused(f"{name} runs: stop it first{of_gone}")
    done = "forgotten"
    if cluster.state.in_sync is not None and seat.member.replica in cluster.state.in_sync.members:
        if cluster.state.leader is None:
            raise Refused(
                f"{name} is in sync and there is no leader: it may have messages that no other copy has. Start it, or"
                " `toymqctl cluster force` another"
            )
        done = await _ask(agreement, cluster, RequestKind.REMOVE, seat.member.replica)
    await agreement.forget_seat(seat.member.replica)
    return done


async def force(agreement: Agreement, name: str) -> tuple[str, LeaderKey]:
    """Make a node the leader although it may lack messages. Returns: its answer, and its key as the leader.

    Raises: Refused; EtcdError.
    """
    cluster = await look(agreement)
    seat = cluster.find(name)
    if cluster.state.leader is not None:
        raise Refused(f"{cluster.state.leader.member.name} leads: nothing has to be forced")
    if cluster.state.in_sync is None:
        raise Refused("no node has led yet: nothing has to be forced")
    if not seat.present:
        raise Refused(f"{name} does not run: start it first")
    text = await _ask(agreement, cluster, RequestKind.FORCE, seat.member.replica)
    return text, await _new_leader(agreement, 0, seat.member)


async def adopt(agreement: Agreement, replica_json: bytes) -> ClusterSettings:
    """Rebuild the cluster in etcd from the copy to which a ``replica.json`` belongs, after etcd was wiped or restored from a
    snapshot. The other copies become new replicas of it. Returns: the cluster's new settings.

    Raises: Refused; DamagedData; EtcdError.
    """
    record = decode(replica_json)
    cluster = await look(agreement)
    if record.copying:
        raise Refused("this copy is half copied: adopt another")
    if cluster.state.leader is not None:
        raise Refused(f"{cluster.state.leader.member.name} leads: nothing has to be adopted")
    if running := [seat.member.name for seat in cluster.seats if seat.present]:
        run = agreeing("run", len(running))
        raise Refused(f"stop all nodes first, and wait until they are gone: {', '.join(running)} {run}")
    settings = replace(cluster.settings, cluster=str(uuid.uuid4()), was=record.cluster, adopted=record.replica)
    if not (await agreement.adopt(settings)).done:
        raise Refused("the cluster has changed meanwhile: look with `toymqctl cluster show`")
    for seat in cluster.seats:
        await agreement.forget_seat(seat.member.replica)
    return settings


async def _ask(agreement: Agreement, cluster: Cluster, kind: RequestKind, replica: ReplicaId | None) -> str:
    """Send a request to a node through etcd, and wait for its answer. Returns: the answer's text. Raises: Refused;
    EtcdError."""
    in_sync = cluster.state.in_sync
    lease = await agreement.grant(REQUEST_TTL_S)
    try:
        asked = await agreement.ask(Request(kind, replica, in_sync.revision if in_sync is not None else 0), lease)
        if not asked.done:
            raise Refused("another request waits for a node: try again when it is answered")
        try:
            async with asyncio.timeout(REQUEST_TTL_S):
                return await _answer(agreement, asked.revision)
        except TimeoutError:
            raise Refused(f"no node took the request within {REQUEST_TTL_S:g} s") from None
    finally:
        with suppress(EtcdError):  # it ends by itself
            await agreement.revoke(lease)  # a request that waits goes with it


async def _answer(agreement: Agreement, revision: int) -> str:
    while True:
        state = await agreement.read()
        if state.answer is not None and state.answer.request == revision:
            if state.answer.accepted:
                return state.answer.text
            raise Refused(state.answer.text)
        if state.request is None or state.request.revision != revision:
            raise Refused("the request is gone without an answer: look with `toymqctl cluster show`")
        await agreement.changed(state.revision)


async def _new_leader(agreement: Agreement, epoch: int, member: Member | None = None) -> LeaderKey:
    """Wait for a leader of a later epoch, and of ``member`` if given. Raises: Refused after ``NEW_LEADER_S``; EtcdError."""
    try:
        async with asyncio.timeout(NEW_LEADER_S):
            while True:
                state = await agreement.read()
                leader = state.leader
                if leader is not None and leader.epoch > epoch and (member is None or leader.member.replica == member.replica):
                    return leader
                await agreement.changed(state.revision)
    except TimeoutError:
        raise Refused(
            f"no new leader within {NEW_LEADER_S:g} s: `toymqctl cluster show` says what is waited for"
        ) from None
