"""Writes a topic of a bucket into a directory as it was at a given time: the records up to then, and the state of then (ADR
0181).

A record existed at that time if its own time is not later, if a state of then knew its id, or if a later segment had begun:
record times are not monotonic if a clock was set back (ADR 0050). The topic gets a new incarnation, since its last segment may
be cut, and other records than in the bucket will follow.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

from toymq_py.config.topic_settings import TopicSettings
from toymq_py.errors import DamagedData
from toymq_py.records import IdRange
from toymq_py.storage import offsets, topic_settings
from toymq_py.storage.fs import FileSystem, write_synced
from toymq_py.storage.id_ranges import last_of_range, record_range, subtract, union
from toymq_py.storage.record import Columns, Stop, scan
from toymq_py.storage.segment import segment_name
from toymq_py.tier.bucket import Bucket
from toymq_py.tier.keys import Holding, Place, segment_key
from toymq_py.tier.objects import State
from toymq_py.tier.restore_topic import Restored, fetch
from toymq_py.tier.states import begins_at, newest_state

SCANNED_AT_ONCE = 50_000


def restore_topic_at(
    fs: FileSystem, bucket: Bucket, place: Place, holding: Holding, to: str, at_ns: int, *, goes_on_at: int, incarnation: str
) -> Restored | None:
    """Write a topic as it was at a time. Nothing in the bucket changes.

    Args:
        goes_on_at: the next id of the restored topic, as lower ids may have been used since then.
        incarnation: the new incarnation.

    Returns: None when the topic did not exist yet. Raises: OSError, BucketError.
    """
    done = Restored(Place(place.topic, incarnation))
    found = newest_state(bucket, place, [each for each in holding.states if each <= at_ns], done.problems.append)
    done.state_ns, state, known = found or (None, State(0, None, None), offsets.OffsetsState())
    bases = sorted(each for each in holding.segments | holding.seals if not known.has_removed(each))
    begun, taken = _taken(bucket, place, bases, at_ns, state.next_id)
    if found is None and not taken:
        return None
    if done.state_ns is not None and done.state_ns == max(holding.states):
        done.unknown_since_ns = done.state_ns
    fs.mkdir(to)
    held: list[IdRange] = []
    for row, first_id in enumerate(bases[:taken]):
        data, next_id = fetch(bucket, place, first_id, holding, done)
        if data is not None and row >= begun - 1:
            data, next_id = _cut(data, first_id, next_id, at_ns, state.next_id, f"{segment_key(place, first_id)}", done)
        if next_id > first_id:  # what is damaged is a loss, as at any restore
            held.append((first_id, next_id - 1))
        if data:
            write_synced(fs, f"{to}/{segment_name(first_id)}", data, exclusive=True)
            done.segments += 1
    first_id = known.first_id if found is not None or not held else held[0][0]
    end = held[-1][1] + 1 if held else first_id
    until = max(end, state.next_id, known.next_id)
    missing = subtract([(first_id, until - 1)], [*known.removed, *held]) if until > first_id else []
    since = _removed_since(bucket, place, holding, missing)
    done.problems += [
        record_range(first, last, "were there, were removed by retention or PURGE since, and are not in the bucket any more")
        for first, last in since
    ]
    done.unsealed += [(max(first, end), last) for first, last in subtract(missing, since) if last >= end]
    done.next_id = max(until, goes_on_at)
    write_synced(fs, f"{to}/{segment_name(done.next_id)}", b"", exclusive=True)
    topic_settings.store(fs, to, _settings(bucket, place, holding, state, done), incarnation)
    removed = union([*known.removed, *since, *([(until, done.next_id - 1)] if done.next_id > until else [])])
    if found is not None and (last_gone := last_of_range(since, first_id)) is not None:
        first_id = last_gone + 1
    known = replace(known, first_id=first_id, next_id=done.next_id, removed=tuple(removed), incarnation=incarnation)
    offsets.write(fs, to, offsets.encode(known, place.topic))
    fs.sync_dir(to)
    return done


def _taken(bucket: Bucket, place: Place, bases: Sequence[int], at_ns: int, known_id: int) -> tuple[int, int]:
    """How many segments had begun at a time, and how many to examine: includes later ones of which that is unknown."""
    begun, unknown = len(bases), set()
    while begun and bases[begun - 1] >= known_id:
        time_ns = begins_at(bucket, place, bases[begun - 1])
        if time_ns is None:
            unknown.add(begun - 1)
        elif time_ns <= at_ns:
            break
        begun -= 1
    taken = begun
    while taken in unknown:
        taken += 1
    return begun, taken


def _cut(
    data: bytes, first_id: int, next_id: int, at_ns: int, known_id: int, key: str, done: Restored
) -> tuple[bytes, int]:
    """The records of a segment that existed at a time, and the id after them. Ids below ``known_id`` certainly existed."""
    pos, msg_id, stop = 0, first_id, Stop.COUNT
    while stop is Stop.COUNT and msg_id < next_id:
        columns, began_id = Columns(), msg_id
        pos, msg_id, stop = scan(data, pos, msg_id, columns, max_count=min(SCANNED_AT_ONCE, next_id - msg_id))
        row = max(bisect_right(columns.ts_ns, at_ns), known_id - began_id)  # inside a segment times never fall
        if row < len(columns.ts_ns):
            return data[: columns.positions[row]], began_id + row
    if msg_id < next_id:
        done.problems.append(f"{key} is damaged behind record {msg_id - 1}: what follows it there is left out")
    return data[:pos], msg_id


def _removed_since(bucket: Bucket, place: Place, holding: Holding, missing: Sequence[IdRange]) -> list[IdRange]:
    """Those of the missing ids that the newest state says were removed on purpose."""
    newest = newest_state(bucket, place, holding.states, lambda _problem: None) if missing else None
    if newest is None:
        return []
    known = newest[2]
    removed = [*([(0, known.first_id - 1)] if known.first_id else []), *known.removed]
    return subtract(missing, subtract(missing, removed))


def _settings(bucket: Bucket, place: Place, holding: Holding, state: State, done: Restored) -> TopicSettings:
    """The settings in a state; without a state of that time, those in the first later one."""
    if done.state_ns is None:
        states = (newest_state(bucket, place, [at], lambda _problem: None) for at in sorted(holding.states))
        later = next(filter(None, states), None)
        of = "the defaults" if later is None else "those of the first state behind it"
        done.problems.append(f"the bucket has no state of then: it gets no consumers, and its settings are {of}")
        state = state if later is None else later[1]
    try:
        return TopicSettings() if state.settings is None else topic_settings.parse(state.settings, place.topic).settings
    except DamagedData as error:
        done.problems.append(f"its settings cannot be read, and are the defaults: {error}")
        return TopicSettings()
