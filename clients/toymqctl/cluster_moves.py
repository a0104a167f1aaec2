"""How ``toymqctl cluster move`` and ``remove-group`` change etcd. Contract: groups.md, stage 3; ADR 0194.

A move is recorded in etcd until it is done, so it goes on when the command is interrupted.
"""

import asyncio
from collections.abc import Callable

from toymq_py.errors import EtcdError
from toymq_py.names import DEAD_LETTERS, is_dead_letters, some_of, whole_name
from toymq_py.replication.kept_places import Group, KeptPlaces, Move, Picture, Record, why_it_stays
from toymq_py.units import agreeing
from toymqctl.cluster_requests import Refused

LOOK_S = 0.2
"""How often etcd is asked whether a topic has come."""
LEADERS_LOOKS = 25
"""Of so many looks one is whether both groups have leaders: it reads the records of all topics."""


async def move(kept: KeptPlaces, topic: str, to: str, say: Callable[[str], None]) -> str:
    """Move a topic, with its dead letters, to a group, and wait until it is there. If the topic is in that group already, give
    up its pending move to another one. Returns: what was done. Raises: Refused, EtcdError."""
    picture, record = await kept.read(), await kept.record(topic)
    if (why := why_it_stays(topic, record)) is not None:
        raise Refused(why)
    check(picture, topic, to)
    if record is None:
        raise Refused(f"no group has a topic {topic}: `toymqctl topics` lists them")
    before = await kept.move(topic)
    if record.group == to:
        return await _given_up(kept, topic, to, before)
    if before is None or before.refused is not None:
        await _asked(kept, topic, record, to, before)
        say(f"{topic} goes from group {record.group} to {to}")
    elif before.to != to:
        raise Refused(
            f"{topic} is being moved to group {before.to}: give that up with `toymqctl cluster move {topic} {record.group}`"
        )
    looks, origin, leaderless = 0, record.group, set[str]()
    while True:
        try:
            if looks % LEADERS_LOOKS == 0:
                leaderless = _said_to_wait(picture if looks == 0 else await kept.read(), {origin, to}, leaderless, say)
            looks += 1
            pending, record = await kept.move(topic), await kept.record(topic)
        except EtcdError:  # whatever becomes of it here, the leaders go on
            pending = before
            await asyncio.sleep(LOOK_S)
            continue
        if record is not None and record.group == to:
            return f"{topic} is in group {to}"
        if pending is None:
            raise Refused(f"{topic} was not moved: it was deleted, or the move was given up")
        if pending.refused is not None:
            await kept.withdraw(topic, pending)
            raise Refused(pending.refused)
        await asyncio.sleep(LOOK_S)


def _said_to_wait(picture: Picture, groups: set[str], said: set[str], say: Callable[[str], None]) -> set[str]:
    """Say which groups without a leader a move waits for, each once. Returns: the groups without a leader."""
    found = {name for name in groups if picture.groups.get(name, Group()).leader is None}
    for name in sorted(found - said):
        say(
            f"group {name} has no leader: the move waits for it, and goes on by itself once it has one, also without this"
            f" command (`toymqctl cluster --group {name}` says what is missing)"
        )
    return found


async def remove_group(kept: KeptPlaces, group: str) -> str:
    """Take a group without topics, whose nodes are stopped, out of the cluster. If this is killed half-way, no new topic is
    placed until it is called again or a node of the group starts. Returns: what was done. Raises: Refused, EtcdError.

    Args:
        kept: the record of places, opened for that group.
    """
    picture = await kept.read()
    if not picture.groups.get(group, Group()).made:
        raise Refused(f"there is no group {group}; there are {_made(picture)}")
    if len([each for each in picture.groups.values() if each.made]) == 1:
        raise Refused(f"{group} is the only group of the cluster")
    _check_empty(picture, group)
    if not (await kept.close_group()).done:
        raise Refused(f"group {group} has a leader: stop its nodes first")
    _check_empty(await kept.read(), group)  # from here on nothing is placed in it
    if not (await kept.remove_group()).done:
        raise Refused(f"a node of group {group} was started meanwhile: stop it first")
    return f"group {group} is no more: its data directories are not touched"


def _check_empty(picture: Picture, group: str) -> None:
    if nodes := sorted(node.name for node in picture.groups[group].nodes.values()):
        raise Refused(f"{some_of(nodes)} of group {group} {agreeing('run', len(nodes))}: stop its nodes first")
    left = {topic: record for topic, record in picture.records.items() if record.group == group}
    stay = {topic for topic, record in left.items() if why_it_stays(topic, record) is not None}
    parts = {whole_name(topic).removesuffix(DEAD_LETTERS) for topic in stay}
    topics = sorted(topic for topic in left.keys() - stay if topic.removesuffix(DEAD_LETTERS) not in left.keys() - {topic})
    topics += sorted(topic for topic, move in picture.moves.items() if move.to == group and move.refused is None)
    found = []
    if topics:
        move_one = f"`toymqctl cluster move {topics[0]} {_another(picture, group)}`"
        found.append(f"group {group} has topics: {some_of(topics)}; start it, and move them to another group ({move_one}) or "
                     f"delete them (`toymqctl delete {topics[0]}`)")  # fmt: skip
    if parts:
        one, made = min(parts), f"`toymqctl create NAME --partitions N group={_another(picture, group)}`"
        found.append(f"group {group} has partitions of {some_of(sorted(parts))}, which are not moved: start it, make a topic "
                     f"in place of {one} in another group ({made}), publish there, let the consumers drain {one}, and "
                     f"delete it (`toymqctl delete {one}`)")  # fmt: skip
    if found:
        raise Refused("; ".join(found))


def _another(picture: Picture, group: str) -> str:
    return min(name for name, each in picture.groups.items() if each.made and name != group)


def _made(picture: Picture) -> str:
    return some_of(name for name, each in picture.groups.items() if each.made)


def check(picture: Picture, topic: str, to: str) -> None:
    """Check that a topic can be moved to a group. Raises: Refused when it cannot, whatever etcd has of the topic."""
    if is_dead_letters(topic):
        raise Refused(f"{topic} goes with {topic.removesuffix(DEAD_LETTERS)}: move that")
    if not picture.groups.get(to, Group()).made:
        raise Refused(f"there is no group {to}; there are {_made(picture)}")
    if not picture.groups[to].placed:
        raise Refused(f"group {to} has not been served with --group yet: start its nodes")


async def _asked(kept: KeptPlaces, topic: str, record: Record, to: str, before: Move | None) -> None:
    """Record the move in etcd, for the leaders to carry out. Raises: Refused, EtcdError."""
    try:
        if (await kept.ask(topic, record, to, before)).done:
            return
    except EtcdError:
        asked = await kept.move(topic)
        if asked is None or asked.to != to:
            raise
        return
    raise Refused(f"{topic} was moved, deleted or asked for meanwhile: try again")


async def _given_up(kept: KeptPlaces, topic: str, to: str, before: Move | None) -> str:
    if before is None:
        return f"{topic} is in group {to}"
    if not (await kept.withdraw(topic, before)).done:
        raise Refused(f"{topic} was just being moved: try again")
    return f"{topic} stays in group {to}: its move to {before.to} is given up"
