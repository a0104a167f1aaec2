"""Writes a topic of a bucket into a directory: all sealed segments, with the newest state."""

from dataclasses import dataclass, field, replace

from toymq_py.config.topic_settings import TopicSettings
from toymq_py.errors import DamagedData
from toymq_py.records import IdRange
from toymq_py.storage import offsets, topic_settings
from toymq_py.storage.fs import FileSystem, replace_file, write_synced
from toymq_py.storage.id_ranges import record_range, subtract
from toymq_py.storage.record import scan
from toymq_py.storage.segment import segment_name
from toymq_py.tier.bucket import Bucket, BucketError
from toymq_py.tier.keys import Holding, Place, seal_key, segment_key, state_key
from toymq_py.tier.objects import MisplacedObject, Seal, State
from toymq_py.tier.states import ids_left_out, known_until, newest_state


@dataclass(slots=True)
class Restored:
    """The result of restoring a topic."""

    place: Place
    state_ns: int | None = None
    """The time of its state; None: it had none."""
    segments: int = 0
    unsealed: list[IdRange] = field(default_factory=list)
    """The ids that are not in the bucket, and that no object of it is known to have had."""
    unknown_since_ns: int | None = None
    """The time since which the bucket does not know what ids were handed out. None: since the epoch, or it does know."""
    next_id: int = 0
    """The id with which the log goes on."""
    problems: list[str] = field(default_factory=list)
    unnamed: int = 0
    """The number of segments whose seal names no topic, or that have none: only their keys say that they are of this topic."""
    why_absent: str | None = None
    """Why the topic is not restored; None: it is."""


def restore_topic(fs: FileSystem, bucket: Bucket, place: Place, holding: Holding, to: str, now_ns: int) -> Restored:
    """Write a topic into a directory. ``now_ns``: ids that may have been assigned until then are not used again."""
    done = Restored(place)
    fs.mkdir(to)
    found = newest_state(bucket, place, holding.states, done.problems.append)
    if found is None:
        done.problems.append("it has no state: its consumers and settings are not known, nor which ids were not sealed")
    done.state_ns, state, known = found or (None, State(0, None, None), offsets.OffsetsState())
    end, first = known.first_id, None
    for first_id in sorted(holding.segments | holding.seals):
        if known.has_removed(first_id):
            continue  # its deletion was under way
        data, next_id = fetch(bucket, place, first_id, holding, done)
        end = max(end, next_id)
        if data is None:
            continue
        write_synced(fs, f"{to}/{segment_name(first_id)}", data, exclusive=True)
        done.segments += 1
        first = first_id if first is None else first
    next_id = max(end, known.next_id, state.next_id)
    if next_id > end:  # what an earlier restore left out was no message's
        done.unsealed += subtract([(end, next_id - 1)], known.removed)
    done.unknown_since_ns = done.state_ns
    since_ns = known_until(bucket, place, holding, now_ns) if done.state_ns is None else done.state_ns
    done.next_id = next_id + ids_left_out(since_ns, now_ns)
    # Of its own: what is sealed in the bucket is appended to no more.
    write_synced(fs, f"{to}/{segment_name(done.next_id)}", b"", exclusive=True)
    if state.settings is not None:
        replace_file(fs, f"{to}/{topic_settings.FILE_NAME}", state.settings)
    else:
        topic_settings.store(fs, to, TopicSettings(), place.incarnation)
    first_id = known.first_id if done.state_ns is not None or first is None else first
    removed = (*known.removed, (next_id, done.next_id - 1))
    known = replace(known, first_id=first_id, next_id=done.next_id, removed=removed, incarnation=place.incarnation)
    encoded = offsets.encode(known, place.topic)
    offsets.write(fs, to, encoded)
    fs.sync_dir(to)
    try:  # behind the newest, so that the next restore goes on behind this one, whatever becomes of this directory
        at_ns = max(holding.states, default=0) + 1
        bucket.put(state_key(place, at_ns), State(done.next_id, encoded, state.settings).encode(place))
    except BucketError as error:
        done.problems.append(f"the bucket was not told ({error}): another restore would use its ids from {done.next_id} on")
    return done


def fetch(bucket: Bucket, place: Place, first_id: int, holding: Holding, done: Restored) -> tuple[bytes | None, int]:
    """Fetch a segment, and the id after it. The segment is None when it is gone, does not fit its seal, has no record, or has
    another segment's seal; the id is then the one in the seal, or 0 without a seal."""
    key, seal = segment_key(place, first_id), None
    data = bucket.get(key) if first_id in holding.segments else None
    if first_id in holding.seals and (sealed := bucket.get(seal_key(place, first_id))) is not None:
        try:
            seal = Seal.decode(sealed, place, first_id)
        except MisplacedObject as error:
            done.problems.append(f"{seal_key(place, first_id)}: {error}: {key} is left out, from record {first_id} on")
            return None, 0
        except DamagedData as error:
            done.problems.append(f"{seal_key(place, first_id)}: {error}")
    next_id = 0 if seal is None else seal.next_id
    if data is None:
        records = "" if seal is None else f": {record_range(first_id, next_id - 1, 'were in it')}"
        done.problems.append(f"{key} is gone from the bucket{records}")
        return None, next_id
    if seal is None:  # it was cut off behind the segment, which is whole: its records have checksums of their own
        next_id = scan(data, 0, first_id)[1]
    elif (misfit := seal.misfit(data)) is not None:
        done.problems.append(f"{key} is damaged: {misfit}: {record_range(first_id, next_id - 1, 'are left out')}")
        return None, next_id
    if next_id <= first_id:
        done.problems.append(f"{key} has no seal and no record: it is left out")
        return None, 0
    done.unnamed += seal is None or seal.place is None
    return data, next_id
