"""Compares a data directory with a bucket, in both directions, and repairs differences that can be decided."""

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from toymq_py.errors import DamagedData
from toymq_py.storage import topic_settings
from toymq_py.storage.evicted import list_log
from toymq_py.storage.fs import FileSystem, read_if_there
from toymq_py.storage.id_ranges import record_range
from toymq_py.storage.offline.backup_directory import utc
from toymq_py.storage.segment import Segment, segment_name
from toymq_py.storage.topic_directories import topic_names
from toymq_py.tier.bucket import Bucket
from toymq_py.tier.deletions import list_holdings
from toymq_py.tier.keys import Holding, Place, deleted_key, keys_of, seal_key, segment_key, state_key
from toymq_py.tier.objects import Part, Seal, State
from toymq_py.tier.plan import plan
from toymq_py.tier.uploads import delete_segment, known_of_copies, parts_of, store_segment
from toymq_py.units import counted


@dataclass(slots=True)
class Finding:
    """A difference between directory and bucket. ``mended``: how ``repair`` removed it; None if an operator has to decide."""

    place: Place | None
    text: str
    mended: str | None = None


def check(
    fs: FileSystem, bucket: Bucket, data_dir: str, *, repair: bool = False, delete: Collection[str] = ()
) -> Iterator[Finding]:
    """Compare a data directory with a bucket. ``repair``: upload missing objects, and delete unneeded ones: those of topics
    that are marked as deleted, and segments that the offsets on the disk say were removed. Other objects that only the bucket
    has are kept, since the disk may have lost them. ``delete``: topics of which incarnations that the disk lacks are deleted.
    Harmless while the broker runs. Every segment of the bucket is fetched and compared with its seal.

    Raises: DataDirectoryError, OSError, BucketError.
    """
    found = list_holdings(bucket)
    on_disk: set[Place] = set()
    for name in topic_names(fs, data_dir):
        path = f"{data_dir}/topics/{name}"
        try:
            incarnation = topic_settings.load(fs, path).incarnation
            bases, away = list_log(fs, path)
        except FileNotFoundError:  # deleted meanwhile
            continue
        if incarnation is None:
            if len(bases) > 1:
                text = f"topic {name} has no incarnation yet: {len(bases) - 1} sealed segments are on the disk alone"
                yield Finding(None, text)
            continue
        place = Place(name, incarnation)
        on_disk.add(place)
        yield from _check_topic(fs, bucket, place, path, bases, away, found.get(place, Holding()), repair=repair)
    for place, holding in sorted(found.items(), key=lambda each: each[0]):
        yield from _check_deletion(bucket, place, holding, is_here=place in on_disk, repair=repair)
        if place in on_disk:
            yield from _check_states(bucket, place, holding)
        else:
            for first_id in [] if holding.deleted or place.topic in delete else sorted(holding.segments & holding.seals):
                yield from _compare(bucket, place, first_id, None, 0, None, repair=repair)
            yield _check_absent(bucket, place, holding, repair=repair, unwanted=place.topic in delete)


def _check_topic(
    fs: FileSystem, bucket: Bucket, place: Place, path: str, bases: list[int], away: Mapping[int, Segment], holding: Holding,
    *, repair: bool,
) -> Iterator[Finding]:  # fmt: skip
    following = dict(pairwise(bases))
    todo = plan(bases, 1 << 64, holding, known_of_copies(fs, path)[0].has_removed, away)
    for first_id in todo.lost:
        yield _check_lost(bucket, place, away[first_id], repair=repair)
    for first_id in todo.upload:
        finding = Finding(place, f"{segment_key(place, first_id)} is on the disk alone")
        data = read_if_there(fs, f"{path}/{segment_name(first_id)}")
        if data is None:
            continue
        if repair:
            parts = parts_of(fs, path, first_id, following[first_id], data)
            if store_segment(bucket, place, first_id, data, following[first_id], parts):
                finding.mended = "uploaded"
            else:
                finding.text = f"{segment_key(place, first_id)} has no seal, and is not the segment of the disk"
        yield finding
    for first_id in todo.delete:
        finding = Finding(place, f"{segment_key(place, first_id)} was removed from the topic, and is still in the bucket")
        if repair:
            delete_segment(bucket, place, first_id, holding)
            finding.mended = "deleted"
        yield finding
    for first_id in sorted(holding.segments - {*todo.upload, *todo.delete}):
        data = None
        if first_id in following:
            data = read_if_there(fs, f"{path}/{segment_name(first_id)}")
        elif first_id not in bases:
            yield Finding(place, f"{segment_key(place, first_id)} is in the bucket alone: the disk lost it, and it is kept")
        if first_id in holding.seals:
            next_id = following.get(first_id, 0)
            cut = partial(parts_of, fs, path, first_id, next_id, data or b"")
            yield from _compare(bucket, place, first_id, data, next_id, away.get(first_id), repair=repair, parts=cut)


def _check_lost(bucket: Bucket, place: Place, segment: Segment, *, repair: bool) -> Finding:
    """Check an evicted segment whose object or seal is missing in the bucket."""
    key = segment_key(place, segment.base_id)
    data = bucket.get(key)
    if data is None or segment.sha256 != hashlib.sha256(data).hexdigest():
        why = "is gone from the bucket" if data is None else "is damaged"
        lost = record_range(segment.base_id, segment.next_id - 1, "are lost")
        text = f"{key} {why}, and the segment had left the disk: {lost}"
        return Finding(place, text)
    finding = Finding(place, f"{key} has no seal")
    if repair:
        bucket.put(seal_key(place, segment.base_id), Seal.of(data, place, segment.base_id, segment.next_id).encode())
        finding.mended = "written anew"
    return finding


def _compare(
    bucket: Bucket, place: Place, first_id: int, data: bytes | None, next_id: int, evicted: Segment | None, *, repair: bool,
    parts: Callable[[], Sequence[Part]] = tuple,
) -> Iterator[Finding]:  # fmt: skip
    """Compare a segment object with its seal, and with the segment on the disk, or with the SHA-256 that the disk has of an
    evicted one.

    If two of the three agree, the third is repaired: the object is replaced by the disk's segment if the seal fits that, and
    the seal is written anew if the disk has or knows the object, also if the seal names another segment, or none.
    """
    key, seal_name = segment_key(place, first_id), seal_key(place, first_id)
    stored, sealed = bucket.get(key), bucket.get(seal_name)
    if stored is None or sealed is None:  # retention removed it meanwhile
        return
    is_other = evicted is not None and evicted.sha256 != hashlib.sha256(stored).hexdigest()
    is_right = data == stored or (evicted is not None and not is_other)

    def written_anew(text: str) -> Finding:
        finding = Finding(place, text)
        if repair and is_right:
            ends_at = next_id if evicted is None else evicted.next_id
            bucket.put(seal_name, Seal.of(stored, place, first_id, ends_at, parts()).encode())
            finding.mended = "written anew"
        return finding

    try:
        seal = Seal.decode(sealed, place, first_id)
    except DamagedData as error:
        yield written_anew(f"{seal_name} in the bucket is damaged: {error}")
        if is_other:
            yield Finding(place, f"{key} is not the segment that left the disk: readers wait for the right one")
        if data not in (None, stored):
            yield Finding(place, f"{key} and the segment of the disk differ")
        return
    misfit = seal.misfit(stored)
    if misfit is not None:
        finding = Finding(place, f"{key} in the bucket is damaged: {misfit}")
        if repair and data is not None and seal.fits(data):
            bucket.put(key, data)
            finding.mended = "replaced by the segment of the disk"
        yield finding
    elif is_other:
        yield Finding(place, f"{key} is not the segment that left the disk: readers wait for the right one")
    elif seal.place is None:
        yield written_anew(f"{seal_name} names no topic, as those of before 2026-11-29: a restore takes {key} for this one's")
    if data is not None and not seal.fits(data):
        yield Finding(place, f"{key} and the segment of the disk differ")


def _check_states(bucket: Bucket, place: Place, holding: Holding) -> Iterator[Finding]:
    """Check the state objects of a topic; a restore takes the newest undamaged one."""
    whole = 0
    for at in sorted(holding.states):
        key = state_key(place, at)
        if (data := bucket.get(key)) is None:  # a newer one has replaced it meanwhile
            whole += 1
            continue
        try:
            State.decode(data, place)
            whole += 1
        except DamagedData as error:
            yield Finding(place, f"{key} is damaged: {error}")
    if holding.segments and not whole:
        text = f"topic {place.topic}, incarnation {place.incarnation}, has no state in the bucket"
        yield Finding(place, f"{text}: a restore would have neither consumers nor settings; a broker that starts stores one")


def _check_deletion(bucket: Bucket, place: Place, holding: Holding, *, is_here: bool, repair: bool) -> Iterator[Finding]:
    key, why = deleted_key(place), holding.bad_deletion
    if is_here and (why is not None or holding.deleted):
        found = "cannot be read: " + why if why is not None else f"is of {utc(holding.deleted_ns or 0)}"
        finding = Finding(place, f"{key} {found}, and the topic lives")
        if repair:
            bucket.delete(key)
            finding.mended = "deleted"
        yield finding
    elif why is not None:
        yield Finding(place, f"{key} cannot be read: {why}: the topic counts as one that lives")


def _check_absent(bucket: Bucket, place: Place, holding: Holding, *, repair: bool, unwanted: bool) -> Finding:
    count = len(holding.segments)
    if not holding.deleted and not unwanted:
        text = f"topic {place.topic}, incarnation {place.incarnation}, is in the bucket alone, with {counted(count, 'segment')}"
        return Finding(place, f"{text}: it is kept, since the disk may have lost it")
    finding = Finding(place, f"topic {place.topic} was deleted, and {counted(count, 'segment', 'are still in the bucket')}")
    if repair or unwanted:
        for key in keys_of(place, holding):
            bucket.delete(key)
        bucket.delete(deleted_key(place))
        finding.mended = "deleted"
    return finding
