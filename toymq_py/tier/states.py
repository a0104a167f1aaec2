"""The states of a topic in a bucket: which are kept, which state and incarnation a restore takes, and which ids may have
been assigned since."""

from collections.abc import Callable, Iterable
from contextlib import suppress

from toymq_py.errors import DamagedData
from toymq_py.storage import offsets
from toymq_py.storage.record import HEADER
from toymq_py.tier.bucket import Bucket
from toymq_py.tier.keys import Holding, Place, seal_key, segment_key, state_key
from toymq_py.tier.objects import MisplacedObject, Seal, State, time_of_first

NEWEST_KEPT = 4
_MINUTE_NS = 60_000_000_000
_DAY_NS = 24 * 60 * _MINUTE_NS
SLOTS = (
    (10 * _MINUTE_NS, _DAY_NS // 4), (60 * _MINUTE_NS, 2 * _DAY_NS), (_DAY_NS, 92 * _DAY_NS), (30 * _DAY_NS, 3653 * _DAY_NS),
)  # fmt: skip
"""Width and age of each kind of slot: up to this age, the first state of each slot stays. About three hundred in ten years."""
IDS_LEFT_OUT = 10_000_000
"""The number of ids above those that a bucket knows that are never used again: a state's ten seconds at a million messages a
second, and room for clocks that differ by seconds."""
IDS_A_SECOND = 2_000_000
"""The number of ids that are left out in addition for each second since the state (ADR 0193): more than a broker can hand
out."""


def kept(times: Iterable[int]) -> set[int]:
    """The times of the states to keep: the newest ones, and older ones at increasing distances, for restores to a time. The
    first state of a wide time slot is also the first of a narrow one, so it still exists when the narrow slots expire."""
    ascending = sorted(times)
    stay = {*ascending[-NEWEST_KEPT:]}
    for width, age in SLOTS:
        slots: set[int] = set()
        for at in ascending:
            if at >= ascending[-1] - age and at // width not in slots:
                slots.add(at // width)
                stay.add(at)
    return stay


def choose(found: dict[Place, Holding], at_ns: int | None = None) -> tuple[dict[Place, Holding], list[Place]]:
    """Choose the topics to restore, and list their other incarnations: the one with the newest state is chosen.

    Args:
        at_ns: only states up to this time count. If a topic has none, the incarnation whose states begin first is chosen.
    """

    def rank(holding: Holding) -> tuple[int, int]:
        known = [at for at in holding.states if at_ns is None or at <= at_ns]
        return max(known, default=0), -min(holding.states, default=1 << 64)

    chosen: dict[str, Place] = {}
    alive = {place: holding for place, holding in found.items() if not holding.deleted}
    for place, holding in alive.items():
        other = chosen.get(place.topic)
        if other is None or rank(holding) > rank(alive[other]):
            chosen[place.topic] = place
    taken = {*chosen.values()}
    return {place: alive[place] for place in taken}, sorted({*alive} - taken)


def newest_state(
    bucket: Bucket, place: Place, times: Iterable[int], problem: Callable[[str], None]
) -> tuple[int, State, offsets.OffsetsState] | None:
    """Of the states with these times the newest undamaged one: its time, the state, and its offsets; None without one.
    ``problem`` is told of damaged ones. Raises: BucketError."""
    for at in sorted(times, reverse=True):
        data = bucket.get(state_key(place, at))
        try:
            state = State.decode(data or b"", place)
            known = offsets.OffsetsState() if state.offsets is None else offsets.decode(state.offsets, place.topic)
        except DamagedData as error:
            problem(f"{state_key(place, at)}: {error}: an older one counts")
            continue
        return at, state, known
    return None


def ids_left_out(since_ns: int, now_ns: int) -> int:
    """The highest number of ids that may have been assigned since a time. Readers treat them as removed, not as lost."""
    return IDS_LEFT_OUT + max(now_ns - since_ns, 0) * IDS_A_SECOND // 1_000_000_000


def begins_at(bucket: Bucket, place: Place, first_id: int) -> int | None:
    """The time of the first record of a segment; None when that is unknown. Raises: BucketError."""
    try:
        seal = Seal.decode(bucket.get(seal_key(place, first_id)) or b"", place, first_id)
        if seal.place is not None:
            return seal.begins_ns
    except MisplacedObject:
        return None
    except DamagedData:
        pass
    return time_of_first(bucket.get_range(segment_key(place, first_id), 0, HEADER.size) or b"", first_id)


def known_until(bucket: Bucket, place: Place, holding: Holding, now_ns: int) -> int:
    """The last time at which the bucket knew the assigned ids of a topic without a state, in Unix nanoseconds: the time of the
    first record of its last segment; 0 if unknown. Raises: BucketError."""
    begun = (begins_at(bucket, place, first_id) for first_id in sorted(holding.segments, reverse=True))
    return next((at for at in begun if at is not None and at <= now_ns), 0)


def unused_from(bucket: Bucket, place: Place, holding: Holding, now_ns: int) -> int:
    """The lowest id that an incarnation has certainly not used: above all ids that the bucket knows, and those that may have
    been assigned since its newest state. Raises: BucketError."""
    newest = newest_state(bucket, place, holding.states, lambda _problem: None)
    ends = [] if newest is None else [newest[1].next_id, newest[2].next_id]
    for first_id in sorted(holding.seals, reverse=True):
        with suppress(DamagedData):
            seal = Seal.decode(bucket.get(seal_key(place, first_id)) or b"", place, first_id)
            if first_id < seal.next_id < 1 << 63:
                ends.append(seal.next_id)
                break
    since_ns = known_until(bucket, place, holding, now_ns) if newest is None else newest[0]
    return max(ends, default=0) + ids_left_out(since_ns, now_ns)
