"""Keys of the objects in a bucket, and what a listing shows of each topic.

<topic>/<incarnation>/<first id, 20 digits>.log      a sealed segment, byte for byte
<topic>/<incarnation>/<first id, 20 digits>.idx      its sidecar, in buckets from before ADR 0192: not read any more
<topic>/<incarnation>/<first id, 20 digits>.seal     its names, size, checksums; written last, so a sealed segment is whole
<topic>/<incarnation>/state-<time, 20 digits>.json   settings, consumers and the next id at a time, in Unix nanoseconds
<topic>/<incarnation>/deleted                        when the topic was deleted: its objects are removed, this one last
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from toymq_py.names import is_incarnation, is_topic_name

_SEGMENT = re.compile(r"([0-9]{20})\.(log|seal|idx)\Z")
_STATE = re.compile(r"state-([0-9]{20})\.json\Z")
_DELETED = "deleted"


class Place(NamedTuple):
    """One incarnation of a topic: a topic that is deleted and created anew gets another one."""

    topic: str
    incarnation: str


@dataclass(slots=True)
class Holding:
    """The objects of one incarnation of a topic in a bucket: first ids of segments, seals and indexes, and times of states."""

    segments: set[int] = field(default_factory=set)
    seals: set[int] = field(default_factory=set)
    states: set[int] = field(default_factory=set)
    deleted: bool = False
    indexes: set[int] = field(default_factory=set)
    deleted_ns: int | None = None
    """When the topic was deleted, if that is known."""
    bad_deletion: str | None = None
    """Why the object ``deleted`` cannot be used; None: there is none, or it can."""

    def is_whole(self, first_id: int) -> bool:
        """Whether a segment was uploaded completely: it has a seal."""
        return first_id in self.segments and first_id in self.seals


def segment_key(place: Place, first_id: int) -> str:
    return f"{place.topic}/{place.incarnation}/{first_id:020}.log"


def index_key(place: Place, first_id: int) -> str:
    return f"{place.topic}/{place.incarnation}/{first_id:020}.idx"


def seal_key(place: Place, first_id: int) -> str:
    return f"{place.topic}/{place.incarnation}/{first_id:020}.seal"


def state_key(place: Place, wall_ns: int) -> str:
    return f"{place.topic}/{place.incarnation}/state-{wall_ns:020}.json"


def deleted_key(place: Place) -> str:
    return f"{place.topic}/{place.incarnation}/{_DELETED}"


def keys_of(place: Place, holding: Holding) -> list[str]:
    """All object keys of one incarnation of a topic, except ``deleted``."""
    return [
        *(state_key(place, at) for at in sorted(holding.states)),
        *(segment_key(place, first_id) for first_id in sorted(holding.segments)),
        *(index_key(place, first_id) for first_id in sorted(holding.indexes)),
        *(seal_key(place, first_id) for first_id in sorted(holding.seals)),
    ]


def holdings(keys: Iterable[str]) -> dict[Place, Holding]:
    """Sort the keys of a listing by topic and incarnation. Unknown keys are left out."""
    found: dict[Place, Holding] = {}
    for key in keys:
        topic, _, rest = key.partition("/")
        incarnation, _, name = rest.partition("/")
        if not (is_topic_name(topic) and is_incarnation(incarnation)):
            continue
        segment, state = _SEGMENT.match(name), _STATE.match(name)
        if segment is None and state is None and name != _DELETED:
            continue
        holding = found.setdefault(Place(topic, incarnation), Holding())
        if segment is not None:
            kinds = {"log": holding.segments, "seal": holding.seals, "idx": holding.indexes}
            kinds[segment[2]].add(int(segment[1]))
        elif state is not None:
            holding.states.add(int(state[1]))
        else:
            holding.deleted = True
    return found
