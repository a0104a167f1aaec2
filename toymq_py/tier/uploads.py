"""Brings a bucket up to date with the topics of a data directory. Blocks; for one thread, beside the broker.

Sealed segments never change, so they are read without locks or calls of the broker. Every step may be interrupted or have an
unknown outcome: the next round repeats it, and finds what was done.

    upload    the segment, if its key has none; then its seal. A segment with a seal is whole
    state     offsets and settings, read before the segments are listed; the newest are kept, and some of the older ones
    delete    a segment that the offsets on the disk say was removed: put a state that says so, delete segment and seal
    a topic   that was deleted: put the object "deleted", delete all others, then this one
"""

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from toymq_py.errors import DamagedData
from toymq_py.records import IdRange
from toymq_py.storage import offsets, topic_settings
from toymq_py.storage.evicted import list_log
from toymq_py.storage.fs import FileSystem, read_if_there
from toymq_py.storage.offline import given_up
from toymq_py.storage.segment import parse_sidecar, segment_name
from toymq_py.tier import deletions
from toymq_py.tier.bucket import Bucket
from toymq_py.tier.deletions import list_holdings
from toymq_py.tier.keys import Holding, Place, deleted_key, index_key, keys_of, seal_key, segment_key, state_key
from toymq_py.tier.objects import Part, Seal, State
from toymq_py.tier.parts import cut
from toymq_py.tier.plan import Plan, plan
from toymq_py.tier.states import kept

logger = logging.getLogger("toymq_py.tier")

PROVEN_MAX = 8
"""Most segments of a topic that leave the disk in a round: each is read once more."""
STATE_INTERVAL_NS = 10_000_000_000
"""The shortest time between two states that are stored, unless a segment goes."""


@dataclass(frozen=True, slots=True)
class TopicOnDisk:
    """A topic of the broker: its directory, and its next committed id.

    ``log``: first id and number of its segments; a change tells that one was sealed or removed. ``evictable``: the id ranges of
    segments that may leave the disk once the bucket has them.
    """

    place: Place
    path: str
    committed_id: int
    log: tuple[int, int] = (0, 0)
    evictable: Sequence[IdRange] = ()
    sealed: Sequence[tuple[int, int]] = ()
    """The first ids and sizes of the sealed segments that are on the disk."""


@dataclass(slots=True)
class Round:
    """The result of one round of uploads."""

    segments: int = 0
    uploaded_bytes: int = 0
    deleted: int = 0
    proven: dict[Place, dict[int, str]] = field(default_factory=dict)
    """The first ids and SHA-256 of segments that may leave the disk, and are whole in the bucket."""


def store_segment(
    bucket: Bucket, place: Place, first_id: int, data: bytes, next_id: int, parts: Sequence[Part] = ()
) -> bool:
    """Store a sealed segment, then its seal, so that a segment with a seal is whole.

    Returns: False when the key already has a different object, which stays, but gets no seal. Raises: BucketError.
    """
    key = segment_key(place, first_id)
    if not bucket.put_new(key, data) and bucket.get(key) != data:
        return False
    bucket.put(seal_key(place, first_id), Seal.of(data, place, first_id, next_id, parts).encode())
    return True


def parts_of(fs: FileSystem, path: str, first_id: int, next_id: int, data: bytes) -> Sequence[Part]:
    """The parts of a segment on the disk; [] without a sidecar that fits. Raises: OSError."""
    name = f"{path}/{segment_name(first_id)}"
    sidecar = read_if_there(fs, name[:-4] + ".idx")
    segment = None if sidecar is None else parse_sidecar(sidecar, name, first_id, next_id, len(data))
    return [] if segment is None or segment.next_id != next_id else cut(segment, data)


def known_of_copies(fs: FileSystem, path: str) -> tuple[offsets.OffsetsState, bool]:
    """A topic's offsets, and whether they are lost. Ids that ``toymq repair`` gave up do not count as removed in them, since
    the bucket may have these records. Raises: OSError."""
    loaded = offsets.load(fs, path)
    lost_ids = given_up.load(fs, path).ids
    state = given_up.without(loaded.state, lost_ids) if lost_ids else loaded.state
    return replace(state, generation=None), loaded.source is offsets.OffsetsSource.LOST


def delete_segment(bucket: Bucket, place: Place, first_id: int, holding: Holding) -> None:
    """Delete a segment, then its seal. Raises: BucketError."""
    bucket.delete(segment_key(place, first_id))
    holding.segments.discard(first_id)
    if first_id in holding.indexes:
        bucket.delete(index_key(place, first_id))
        holding.indexes.discard(first_id)
    bucket.delete(seal_key(place, first_id))
    holding.seals.discard(first_id)


class Uploads:
    """The uploads of one broker to one bucket. Lists the bucket once and remembers its objects, since nothing else writes
    there. A directory that was away, or is another one, is listed anew.
    """

    def __init__(
        self, fs: FileSystem, bucket: Bucket, wall_ns: Callable[[], int], settle: Callable[[], None] = lambda: None
    ) -> None:
        """``settle``: called before the bucket is listed, to check that it is the right one; raises BucketError."""
        self._fs = fs
        self._settle = settle
        self._bucket = bucket
        self._wall_ns = wall_ns
        self._identity: object = None
        self._is_listed = False
        """Whether the bucket of this identity was listed, so that ``_held`` is what stands in it."""
        self._held: dict[Place, Holding] | None = None
        self._seen: set[Place] = set()
        self._first_seen: dict[Place, int] = {}
        self._proven: dict[Place, dict[int, str]] = {}
        """The proven segments of the last round; sealed segments do not change."""
        self._stored: dict[Place, bytes] = {}
        """The newest state of each topic, as it was stored."""
        self._conflicts: set[str] = set()
        self._lacking: set[Place] = set()
        """The topics of which something was evicted that this bucket does not have."""
        self._settled: dict[Place, tuple[object, ...]] = {}
        """The state of each topic when nothing was left to do, except for a state that was not due."""

    def round(
        self, topics: Iterable[TopicOnDisk], present: Collection[Place], stopped: Callable[[], bool] = lambda: False
    ) -> Round:
        """Bring the objects of all topics up to date, once.

        Args:
            present: all topics of the broker, including those that are being deleted. A topic that was seen before and is not
                among them was deleted.
            stopped: called before each object; True ends the round.

        Raises: BucketError; the next round continues.
        """
        done = Round()
        identity = self._bucket.identity()
        if self._held is None or not self._is_listed or identity != self._identity:
            self._is_listed = False
            self._settle()
            if self._held is not None:
                logger.warning("the bucket was away, or is another directory: what it lacks is uploaded again")
            self._held = list_holdings(self._bucket)
            self._look_at_deletions(present)
            self._identity, self._is_listed = identity, True
            self._stored.clear()
            self._conflicts.clear()
            self._lacking.clear()
            self._settled.clear()
            self._proven.clear()
        for place in self._seen - {*present}:
            self._held.setdefault(place, Holding()).deleted = True
            self._bucket.put(deleted_key(place), deletions.encode(place, self._wall_ns()))
            self._seen.discard(place)
        for place, holding in [*self._held.items()]:
            if holding.deleted:
                self._end_deletion(place, holding, present, done)
        for topic in topics:
            if stopped():
                break
            self._seen.add(topic.place)
            holding = self._held.setdefault(topic.place, Holding())
            self._bring(topic, holding, done, stopped)
            if topic.place in self._lacking:  # its history is in another bucket: nothing more of it is to leave the disk
                continue
            if topic.evictable and (proven := self._prove_some(topic, holding, stopped)):
                done.proven[topic.place] = proven
        return done

    def problem(self) -> str | None:
        """The problem of a bucket that can be written but does not fit this directory; None without one."""
        if not self._conflicts:
            return None
        also = f" and {len(self._conflicts) - 1} more" if len(self._conflicts) > 1 else ""
        text = f"{min(self._conflicts)}{also} in the bucket is not what this directory has, or is gone"
        return f"{text}: does another broker write to this prefix? `toymq tier check` compares them, then restart the broker"

    def behind_bytes(self, topics: Iterable[TopicOnDisk]) -> int:
        """How many bytes of sealed segments on the disk are not in the bucket. Until the bucket was listed once, segments
        sealed before the first call are not counted, since it may have them."""
        lacking = 0
        for topic in topics:
            first_seen = self._first_seen.setdefault(topic.place, topic.sealed[-1][0] + 1 if topic.sealed else 0)
            holding = None if self._held is None else self._held.get(topic.place, Holding())
            for first_id, size in topic.sealed:
                if first_id >= first_seen if holding is None else not holding.is_whole(first_id):
                    lacking += size
        return lacking

    def _look_at_deletions(self, present: Collection[Place]) -> None:
        """Read the objects ``deleted``. An unreadable one deletes nothing; for a topic that exists here it is stray."""
        assert self._held is not None
        for place, holding in self._held.items():
            if holding.bad_deletion is None:
                continue
            if place in present:
                self._bucket.delete(deleted_key(place))
                logger.warning("%s was removed: the topic lives, and %s", deleted_key(place), holding.bad_deletion)
            else:
                text = "%s cannot be read: %s: its topic stays in the bucket; `toymq tier check` says more"
                logger.error(text, deleted_key(place), holding.bad_deletion)

    def _end_deletion(self, place: Place, holding: Holding, present: Collection[Place], done: Round) -> None:
        assert self._held is not None
        if place not in present:  # else the disk refused, and it is there again
            for key in keys_of(place, holding):
                self._bucket.delete(key)
                done.deleted += 1
        self._bucket.delete(deleted_key(place))
        holding.deleted = False
        if place not in present:
            self._conflicts -= {segment_key(place, first_id) for first_id in holding.segments}
            del self._held[place]
            self._stored.pop(place, None)
            self._settled.pop(place, None)

    def _bring(self, topic: TopicOnDisk, holding: Holding, done: Round, stopped: Callable[[], bool]) -> None:
        stamps = [self._stamp(f"{topic.path}/{name}") for name in (offsets.FILE_NAME, topic_settings.FILE_NAME)]
        look = topic.log, topic.committed_id, stamps
        settled = self._settled.get(topic.place)
        if settled == look:
            return
        if settled is not None and settled[0] == topic.log and not self._state_is_due(holding):
            return  # only the state is another one: parsing thousands of acks would take time from the loop
        try:
            state, is_removed = self._read_state(topic)
            bases, away = list_log(self._fs, topic.path)
        except FileNotFoundError:  # it is being deleted
            return
        todo = plan(bases, topic.committed_id, holding, is_removed, away)
        following = dict(pairwise(bases))
        for first_id in todo.upload:
            if stopped():
                return
            self._upload(topic, first_id, following[first_id], holding, done)
        if state is not None:
            self._store_state(topic.place, state, holding, todo)
        for first_id in todo.delete:
            delete_segment(self._bucket, topic.place, first_id, holding)
            self._conflicts.discard(segment_key(topic.place, first_id))
            done.deleted += 1
        if todo.lost:
            self._lacking.add(topic.place)
        else:
            self._lacking.discard(topic.place)
        for first_id in todo.lost:
            if (key := segment_key(topic.place, first_id)) not in self._conflicts:
                self._conflicts.add(key)
                logger.error("%s is not in the bucket, and not on the disk of %s any more", key, topic.path)
        if all(map(holding.is_whole, todo.upload)) and len(bases) == topic.log[1]:  # else one waits to be unlinked
            is_owed = state is not None and state != self._stored.get(topic.place)  # it was not due: a later round stores it
            self._settled[topic.place] = (topic.log,) if is_owed else look

    def _prove_some(self, topic: TopicOnDisk, holding: Holding, stopped: Callable[[], bool]) -> dict[int, str]:
        """The first ids and SHA-256 of evictable segments that the bucket certainly has: they were compared now, or in the last
        round and are still on the disk."""
        proven: dict[int, str] = {}
        known, self._proven[topic.place] = self._proven.get(topic.place, {}), proven
        whole = [ids for ids in topic.evictable if holding.is_whole(ids[0])]
        for first_id, next_id in [ids for ids in whole if segment_key(topic.place, ids[0]) not in self._conflicts][:PROVEN_MAX]:
            if stopped():
                break
            sha256 = known.get(first_id) or self._prove(topic, first_id, next_id)
            if sha256 is not None:
                proven[first_id] = sha256
        return proven

    def _prove(self, topic: TopicOnDisk, first_id: int, next_id: int) -> str | None:
        """The SHA-256 of a segment on the disk, if the bucket has the same, with a seal that fits both; else None."""
        key = segment_key(topic.place, first_id)
        sealed = self._bucket.get(seal_key(topic.place, first_id))
        if (data := self._read(topic, first_id)) is None:
            return None
        try:
            seal = Seal.decode(sealed or b"", topic.place, first_id)
            why = seal.misfit_of_size(self._bucket.size(key))
            if why is None and not (seal.fits(data) and seal.next_id == next_id):
                why = "it is not the segment of the disk"
        except DamagedData as error:
            seal, why = None, f"its seal: {error}"
        if seal is not None and why is None:
            if seal.place is None:  # one that names its segment, while the disk knows that it is this one
                parts = parts_of(self._fs, topic.path, first_id, next_id, data)
                seal = Seal.of(data, topic.place, first_id, next_id, parts)
                self._bucket.put(seal_key(topic.place, first_id), seal.encode())
            return seal.sha256
        self._conflicts.add(key)  # until a restart
        logger.error("%s in the bucket: %s: the segment stays on the disk; `toymq tier check` compares them", key, why)
        return None

    def _read(self, topic: TopicOnDisk, first_id: int) -> bytes | None:
        """The content of a segment on the disk; None when retention has just removed it, or the topic was created anew."""
        data = read_if_there(self._fs, f"{topic.path}/{segment_name(first_id)}")
        is_same = topic_settings.load(self._fs, topic.path).incarnation == topic.place.incarnation
        return data if is_same else None

    def _stamp(self, path: str) -> object:
        try:
            return self._fs.stamp(path)
        except OSError:
            return None

    def _read_state(self, topic: TopicOnDisk) -> tuple[bytes | None, Callable[[int], bool]]:
        """Read the state to store (None when offsets or settings are damaged), and a function that tells whether an id was
        removed."""
        known, is_lost = known_of_copies(self._fs, topic.path)
        encoded, settings = offsets.encode(known, topic.place.topic) if known != offsets.OffsetsState() else None, None
        try:
            settings = topic_settings.read_bytes(self._fs, topic.path)
        except DamagedData:
            is_lost = True
        state = State(topic.committed_id, encoded, settings)
        return (None if is_lost else state.encode(topic.place)), known.has_removed

    def _upload(self, topic: TopicOnDisk, first_id: int, next_id: int, holding: Holding, done: Round) -> None:
        key = segment_key(topic.place, first_id)
        if key in self._conflicts:
            return
        if (data := self._read(topic, first_id)) is None:
            return
        parts = parts_of(self._fs, topic.path, first_id, next_id, data)
        holding.segments.add(first_id)  # also if the answer is lost: it may be there
        if not store_segment(self._bucket, topic.place, first_id, data, next_id, parts):
            self._conflicts.add(key)  # until a restart: comparing means to fetch it
            logger.error("%s in the bucket is not the segment of %s: `toymq tier check` compares them", key, topic.path)
            return
        holding.seals.add(first_id)
        done.segments += 1
        done.uploaded_bytes += len(data)

    def _state_is_due(self, holding: Holding) -> bool:
        age_ns = self._wall_ns() - max(holding.states, default=0)
        return not 0 <= age_ns < STATE_INTERVAL_NS  # also when the clock was set back

    def _store_state(self, place: Place, state: bytes, holding: Holding, todo: Plan) -> None:
        """Store a state if the time for one has come, if it is the first one, or if ``todo`` deletes segments that it says were
        removed."""
        if state == self._stored.get(place) or (place in self._stored and not todo.delete and not self._state_is_due(holding)):
            return
        at = max(self._wall_ns(), max(holding.states, default=0) + 1)
        holding.states.add(at)  # also if the answer is lost: it may be there
        self._bucket.put(state_key(place, at), state)
        self._stored[place] = state
        for old in sorted(holding.states - kept(holding.states)):
            self._bucket.delete(state_key(place, old))
            holding.states.discard(old)
