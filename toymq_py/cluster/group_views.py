"""Views of a cluster's groups that a leader shows: to clients that look for a topic, in ``CLUSTER``, as metrics, and to the
other leaders. ADR 0188."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

from toymq_py.errors import BadArgument, EtcdError, Moved, PlacementUnknown, RequestError
from toymq_py.names import some_of
from toymq_py.placement import PlaceLink
from toymq_py.replication.kept_places import Group, KeptPlaces, Picture

WEIGH_S = 10.0
"""How often a leader measures the load of its group."""
AWAY_S = 4.0
"""A group that has had no leader for this time counts as away: most failovers take less."""
WEIGHED = 0.1
"""A leader publishes the load of its group when it has changed by more than this fraction."""


class Absences:
    """Tracks since when each group has had no leader. Call ``look`` whenever the picture of the groups has changed."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since: dict[str, float] = {}

    def look(self, groups: Mapping[str, Group]) -> None:
        """Note which groups have no leader now."""
        now = self._now()
        self._since = {name: self._since.get(name, now) for name, group in groups.items() if group.leader is None}

    def seconds(self, name: str) -> float:
        """How long a group has had no leader; 0 while it has one."""
        return self._now() - self._since.get(name, self._now())


def problem_of(name: str, absent_s: float) -> str:
    """The text for a group without a leader; "" while that may be a failover."""
    if absent_s < AWAY_S:
        return ""
    return f"has had no leader for {absent_s:.0f} s: look at its nodes (`toymqctl cluster --group {name}`)"


def moved_to(picture: Picture, name: str, topic: str, absent_s: float, has: str = "has") -> RequestError:
    """The error for a topic of another group: MOVED with all nodes and the gateway of that group.

    ``absent_s``: how long that group has had no leader; ``has``: the verb that the text says of it.
    """
    group = picture.groups.get(name, Group())
    if not (addresses := group.addresses()):
        return PlacementUnknown(f"group {name} {has} the topic {topic}, and no node of it is known: start one")
    words = [*addresses, *(f"toymqs://{address}" for address in group.tls_addresses())]
    if group.led is not None:
        gateways = ("http", group.led.http), ("https", group.led.https)
        words += [f"{scheme}://{where}/" for scheme, where in gateways if where]
    text = f"{' '.join(words)} (group {name}) {has} the topic {topic}"
    if problem := problem_of(name, absent_s):
        error = PlacementUnknown(f"group {name} {has} the topic {topic}, and {problem}")
        error.moved = Moved(f"{text}, and {problem}")
        return error
    return Moved(text)


def check_made(picture: Picture, name: str) -> None:
    """Check that a group exists. Raises: BadArgument."""
    if not picture.groups.get(name, Group()).made:
        made = some_of(each for each, group in picture.groups.items() if group.made)
        raise BadArgument(f"there is no group {name}; there are {made}")


def check_placed(picture: Picture, topic: str, wanted: str | None = None, absent_s: float = 0.0) -> None:
    """Check that a new topic can be placed: in the ``wanted`` group, which has had no leader for ``absent_s``, or in any.

    Raises: PlacementUnknown, while a group may have the topic without a record, or the wanted group has no leader.
    """
    if unplaced := picture.unplaced():
        raise PlacementUnknown(
            f"group {some_of(unplaced)} has not been served with --group yet, and may have {topic}: start its nodes"
        )
    if wanted is not None and not picture.groups[wanted].placed:
        raise PlacementUnknown(f"group {wanted} has had no leader yet, and takes no topic before: start its nodes")
    if wanted is not None and (problem := problem_of(wanted, absent_s)):
        raise PlacementUnknown(f"{topic} was not made: group {wanted} {problem}")


def groups_for_parts(picture: Picture, topic: str, wanted: str | None) -> list[str]:
    """The groups that get the partitions of a topic which CREATE makes or completes: all, or the ``wanted`` one. Partitions
    stay where they are made, so while any group has no leader CREATE fails, rather than divide the topic among the others.

    Raises: PlacementUnknown: a group has no leader; BadArgument: the wanted group does not exist.
    """
    if wanted is not None:
        check_made(picture, wanted)
    check_placed(picture, topic, wanted)
    why = "would get no partition" if wanted is None else "would not know the partitions"
    placed = check_led(picture, f"{why} of {topic}", f"CREATE {topic}")
    return placed if wanted is None else [wanted]


def check_led(picture: Picture, why: str, words: str) -> list[str]:
    """The groups that may have topics, after a check that each has a leader, for a change that each group makes. For the error,
    ``why`` tells what a group without a leader would miss, ``words`` the command. Raises: PlacementUnknown: one has none."""
    placed = [name for name, group in sorted(picture.groups.items()) if group.placed]
    if unled := [name for name in placed if picture.groups[name].leader is None]:
        remedy = f"start its nodes (`toymqctl cluster --group {unled[0]}`), and repeat {words} when it has one"
        raise PlacementUnknown(f"group {some_of(unled)} has no leader, and {why}: {remedy}; nothing was done")
    return placed


async def answers(connect: Callable[[Callable[[], None]], PlaceLink]) -> bool:
    """Whether the leader of a group answers: connect and close. Waits for a leader as long as a failover may take. A leader
    that refuses this node counts as answering.

    Args:
        connect: begins a connection; its argument is called when the connection fails.
    """
    answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def tell() -> None:
        if not answered.done():
            answered.set_result(None)

    link = connect(tell)
    link.on_reached = tell
    try:
        if not link.reached:
            await answered
        return link.reached or bool(link.refusal)
    finally:
        link.close()


def described(picture: Picture, here: str, own: Collection[str], sees: Callable[[str], bool] | None) -> dict[str, Any]:
    """The answer to ``CLUSTER``.

    Args:
        here: the group of this leader, which has the topics ``own``.
        sees: whether a token may see a topic; None: the topics are left out.
    """
    groups = {
        name: {
            "leader": group.leader.member.url if group.leader is not None else None,
            "nodes": group.addresses(), "placed": group.placed, "messages_s": round(group.load),
            **({} if (kept := group.settings) is None else {
                "in_sync": group.in_sync, "replicas": kept.replicas, "min_in_sync": kept.min_in_sync,
            }),
        }
        for name, group in sorted(picture.groups.items()) if group.made
    }  # fmt: skip
    found: dict[str, Any] = {"group": here, "groups": groups}
    if sees is not None:
        places = dict.fromkeys(own, here)
        places |= {topic: record.group for topic, record in picture.records.items()}
        found["topics"] = {topic: places[topic] for topic in sorted(filter(sees, places))}
    return found


def rows(picture: Picture, here: str, own: Collection[str], claims: int) -> dict[str, Mapping[tuple[str, ...], float]]:
    """The metrics of the groups. ``own``: the topics of this group; ``claims``: the topics that it has claimed in etcd."""
    counts = picture.counts()
    counts[here] = len(own)
    made = {name: group for name, group in picture.groups.items() if group.made}
    return {
        "group_topics": {(name,): float(counts[name]) for name in made},
        "group_has_leader": {
            (name,): float(group.leader is not None) for name, group in made.items() if group.begun or group.leader is not None
        },
        "group_load": {(name,): group.load for name, group in made.items()},
        "placements_total": {(): float(claims)},
    }  # fmt: skip


async def weigh(kept: KeptPlaces, lease: int, done: Callable[[], int]) -> None:
    """Publish the load of this group in etcd, every ``WEIGH_S`` if it has changed much.

    Args:
        lease: the etcd lease of the term.
        done: returns how many messages the broker has stored and delivered.
    """
    said, before = -1.0, done()
    while True:
        await asyncio.sleep(WEIGH_S)
        now = done()
        load, before = (now - before) / WEIGH_S, now
        if said < 0 or abs(load - said) > WEIGHED * max(said, 1.0):
            with suppress(EtcdError):
                await kept.weigh(load, lease)
                said = load
