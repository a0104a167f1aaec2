"""Formats a cluster as words and a table: the leader, the copies in sync, and what is waited for when something is missing."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from toymq_py.names import PARTITION_MARK
from toymq_py.replication.agreement import ReplicaId, Seat
from toymq_py.replication.kept_places import Picture
from toymqctl import cluster_requests
from toymqctl.cluster_requests import Cluster
from toymqctl.tables import duration, printable, size, table

NONE: Mapping[str, Any] = {}
_COLUMNS = ("node", "state", "in sync", "address", "lag", "version", "last report")
NS_PER_S = 1_000_000_000
REPORTS = "last report: a node reports once a minute, so it may have run up to a minute longer; `in sync` says which have all"
"""Below a table with a node that does not run: that age is no measure to choose a copy by."""
ID_SHOWN = 8
"""Digits of a replica whose node was never seen."""


def placed(picture: Picture, group: str | None) -> dict[str, Any]:
    """Return facts about a group's topics and load, if the cluster has several groups; {} for a cluster without named groups.
    ``topics`` counts as ``Picture.counts`` does."""
    if group is None:
        return {}
    left = cluster_requests.without_group(group) if group in picture.unplaced() else None
    topics = picture.counts()[group] if left is None else None  # it has no records yet
    parts = sum(PARTITION_MARK in name for name, record in picture.records.items() if record.group == group)
    load = picture.groups[group].load if group in picture.groups else 0.0
    found = {"group": group, "topics": topics, "partitions": parts, "messages_s": round(load)}
    return found if left is None else found | {"left_to_do": [left]}


def shown(name: str, cluster: Cluster, now_s: float, placed: Mapping[str, Any] = NONE) -> str:
    """Return a line of facts, a table of the nodes, and a sentence for each problem.

    Args:
        name: the cluster's name.
        now_s: wall time, seconds.
        placed: what the function ``placed`` returned.
    """
    settings, state = cluster.settings, cluster.state
    members = _members(cluster)
    epoch = f"   epoch {state.leader.epoch}" if state.leader is not None else ""
    group = f"   group {placed['group']}" if placed else ""
    parts = f" ({placed['partitions']} of them partitions)" if placed.get("partitions") else ""
    number = "not known" if placed.get("topics") is None else placed["topics"]
    topics = f"   topics {number}{parts}   messages {placed['messages_s']}/s" if placed else ""
    facts = (
        f"cluster {name}{group}{epoch}   in sync {len(members)} of {settings.replicas}   min in sync {settings.min_in_sync}"
        f"   ttl {settings.ttl_s:g}s{topics}"
    )
    rows = [_row(seat, cluster, now_s) for seat in cluster.seats]
    nodes = [table([_COLUMNS, *rows], text=(0, 1, 2, 3, 5, 6))] if rows else []
    note = [] if all(seat.present for seat in cluster.seats) else [REPORTS]
    return "\n".join([facts, *nodes, *note, *troubles(cluster, now_s), *placed.get("left_to_do", ())])


def as_json(name: str, cluster: Cluster, now_s: float) -> dict[str, Any]:
    """Return the state of a cluster as JSON, for programs; ``shown`` returns it as text for people."""
    settings, state = cluster.settings, cluster.state
    members = _members(cluster)
    return {
        "cluster": name,
        "uuid": settings.cluster,
        "replicas": settings.replicas,
        "min_in_sync": settings.min_in_sync,
        "ttl_s": settings.ttl_s,
        "epoch": state.leader.epoch if state.leader is not None else None,
        "leader": state.leader.member.name if state.leader is not None else None,
        "in_sync": list(members),
        "troubles": troubles(cluster, now_s),
        "nodes": [
            {
                "name": seat.member.name,
                "replica": seat.member.replica,
                "url": seat.member.url,
                "repl": seat.member.repl,
                "running": seat.present,
                "answers": seat.present and seat.member.replica not in cluster.silent,
                "state": seat.state,
                "waits_for": seat.waits_for,
                "in_sync": seat.member.replica in members,
                "lag_bytes": _lag(seat, cluster),
                "damaged": seat.damaged,
                "version": seat.version,
                "seen_s": _age_s(seat, now_s),
            }
            for seat in cluster.seats
        ],
    }


def troubles(cluster: Cluster, now_s: float) -> list[str]:
    """Return a sentence for each problem: what is missing, what is waited for, and what helps; [] when all is well."""
    settings, state = cluster.settings, cluster.state
    members = _members(cluster)
    if state.in_sync is None:
        return ["no copy yet: the first node that starts begins the group"]
    found: list[str] = []
    if state.leader is None:
        found.append(_no_leader(cluster, now_s))
    elif len(members) < settings.min_in_sync:
        found.append(
            f"publishes are refused (NOT_ENOUGH_REPLICAS): {len(members)} in sync, and {settings.min_in_sync} are needed"
        )
    if state.leader is not None and len(members) < settings.replicas:
        found.append(f"{_copies(len(members))} of {settings.replicas} in sync; {_absent(cluster, now_s)}")
    for seat in cluster.seats:
        if (why := cluster.silent.get(seat.member.replica)) is not None:
            found.append(_no_answer(seat, cluster, why))
        if seat.waits_for and state.leader is not None and seat.member.replica == state.leader.member.replica:
            found.append(f"{printable(seat.member.name)} says: {printable(seat.waits_for)}")
        if seat.present and seat.damaged:
            segments = "1 damaged segment" if seat.damaged == 1 else f"{seat.damaged} damaged segments"
            found.append(f"{printable(seat.member.name)} has {segments}: its log names them")
    names = Counter(seat.member.name for seat in cluster.seats if seat.present)
    for name in (name for name, count in names.items() if count > 1):
        found.append(f"several nodes that run are named {printable(name)}: start each with a --name of its own")
    if state.request is not None:
        found.append(f"a request waits for its node: {state.request.kind.value}")
    return found


def _lag(seat: Seat, cluster: Cluster) -> int | None:
    """The bytes that a node has not applied yet, as it reports them itself, or else its leader; None if unknown."""
    leader = cluster.state.leader
    if seat.lag_bytes is not None or leader is None:
        return seat.lag_bytes
    leads = next((each for each in cluster.seats if each.member.replica == leader.member.replica), None)
    return None if leads is None else dict(leads.lags).get(seat.member.replica)


def _members(cluster: Cluster) -> tuple[ReplicaId, ...]:
    return cluster.state.in_sync.members if cluster.state.in_sync is not None else ()


def _copies(count: int) -> str:
    return f"{count} copy" if count == 1 else f"{count} copies"


def _no_leader(cluster: Cluster, now_s: float) -> str:
    members, seats = _members(cluster), {seat.member.replica: seat for seat in cluster.seats}
    running = [seats[member] for member in members if member in seats and seats[member].present]
    if running:
        to = cluster.state.hand_over.to if cluster.state.hand_over is not None else None
        if to in seats:
            return f"no leader: {printable(seats[to].member.name)} takes over"
        if waiting := [_waits(seat) for seat in running if seat.waits_for]:
            return f"no leader: {_listed(waiting)}"
        names = [seat.member.name for seat in running]
        return f"no leader: {_listed(names)} {'stands' if len(names) == 1 else 'stand'} for election"
    away = [_away(member, seats.get(member), now_s) for member in members]
    only = "is the only copy" if len(away) == 1 else "are the copies"
    text = f"no leader: {_listed(away)} {only} in sync, with everything that was acknowledged"
    names = [seats[member].member.name if member in seats else member[:ID_SHOWN] for member in members]
    text += f". Start {_listed(names, 'or')}"
    others = [seat for seat in cluster.seats if seat.present and seat.member.replica not in members]
    if others:
        best = min(others, key=lambda seat: (seat.lag_bytes is None, seat.lag_bytes or 0))
        lost = "what was acknowledged since it was in sync"
        text += f"; or `toymqctl cluster force {printable(best.member.name)} --i-accept-loss`, which loses {lost}"
    return text


def _absent(cluster: Cluster, now_s: float) -> str:
    """Say why copies are missing."""
    members = _members(cluster)
    others = [seat for seat in cluster.seats if seat.member.replica not in members]
    if not others:
        return "start another node"
    return "not in sync: " + _listed(
        [
            (_waits(seat) if seat.waits_for else f"{printable(seat.member.name)} is {printable(seat.state)}")
            if seat.present
            else _away(seat.member.replica, seat, now_s)
            for seat in others
        ]
    )


def _no_answer(seat: Seat, cluster: Cluster, why: str) -> str:
    leader, ttl_s = cluster.state.leader, cluster.settings.ttl_s
    text = f"{printable(seat.member.name)} does not answer at {printable(seat.member.url)} ({printable(why)})"
    text += f": if it is gone, its lease ends within {ttl_s:g} s"
    if leader is None or leader.member.replica != seat.member.replica:
        return text
    return text + (", and another copy leads" if len(_members(cluster)) > 1 else "; no other copy is in sync: start it")


def _waits(seat: Seat) -> str:
    return f"{printable(seat.member.name)} waits ({printable(seat.waits_for)})"


def _away(replica: ReplicaId, seat: Seat | None, now_s: float) -> str:
    if seat is None:
        return f"{replica[:ID_SHOWN]} (never seen)"
    return f"{printable(seat.member.name)} (last report {duration(_age_s(seat, now_s))} ago)"


def _age_s(seat: Seat, now_s: float) -> float:
    """Seconds since a node's last report (see ``REPORTS``)."""
    return max(0.0, now_s - seat.seen_ns / NS_PER_S)  # another machine's clock may be ahead


def _listed(words: list[str], last: str = "and") -> str:
    return f" {last} ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _state(seat: Seat, cluster: Cluster) -> str:
    if not seat.present:
        return "-"
    return f"{seat.state}, no answer" if seat.member.replica in cluster.silent else seat.state


def _row(seat: Seat, cluster: Cluster, now_s: float) -> tuple[str, ...]:
    return (
        seat.member.name,
        _state(seat, cluster),
        "yes" if seat.member.replica in _members(cluster) else "no",
        seat.member.url,
        size(lag_bytes) if seat.present and (lag_bytes := _lag(seat, cluster)) is not None else "-",
        seat.version,
        "-" if seat.present else f"{duration(_age_s(seat, now_s))} ago",
    )
