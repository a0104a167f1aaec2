"""Brings a bucket up to date with the topics of a data directory. Blocks; for one thread, beside the broker.

Sealed segments never change, so nothing of the broker is held or asked while they are read. Every step may be cut off or have
an unknown outcome: the next round makes it again, and finds what is there.

    upload    the segment, if its key has none; then its seal. A segment with a seal is whole.
    state     offsets and settings, read before the segments are listed; the newest ``STATES_KEPT`` stay
    delete    a segment that the offsets on the disk say was removed: a state that says so, the segment, its seal
    a topic   the mark "deleted", its objects, the mark
"""

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import pairwise

from toymq_py.storage import offsets, topic_settings
from toymq_py.storage.fs import FileSystem, read_if_there
from toymq_py.storage.segment import segment_name
from toymq_py.storage.segment_heads import list_bases
from toymq_py.tier.bucket import Bucket
from toymq_py.tier.keys import Holding, Place, deleted_key, holdings, keys_of, seal_key, segment_key, state_key
from toymq_py.tier.objects import Seal, State
from toymq_py.tier.plan import Plan, plan

logger = logging.getLogger("toymq_py.tier")

STATES_KEPT = 4
STATE_INTERVAL_NS = 10_000_000_000
"""A state is stored this often at most, unless a segment goes."""


@dataclass(frozen=True, slots=True)
class TopicOnDisk:
    """A topic of the broker: where it is, and its next id. What reaches beyond that is not committed.

    ``log``: first id and number of its segments; both say when one is sealed or removed.
    """

    place: Place
    path: str
    committed_id: int
    log: tuple[int, int] = (0, 0)


@dataclass(slots=True)
class Round:
    """What a round did."""

    segments: int = 0
    uploaded_bytes: int = 0
    deleted: int = 0


def store_segment(bucket: Bucket, place: Place, first_id: int, data: bytes, next_id: int) -> bool:
    """Store a sealed segment, and its seal behind it, so that one with a seal is whole.

    Returns: False when the key has another object, which stays, without a seal. Raises: BucketError.
    """
    key = segment_key(place, first_id)
    if not bucket.put_new(key, data) and bucket.get(key) != data:
        return False
    bucket.put(seal_key(place, first_id), Seal.of(data, next_id).encode())
    return True


def delete_segment(bucket: Bucket, place: Place, first_id: int, holding: Holding) -> None:
    """Delete a segment, and its seal behind it. Raises: BucketError."""
    bucket.delete(segment_key(place, first_id))
    holding.segments.discard(first_id)
    bucket.delete(seal_key(place, first_id))
    holding.seals.discard(first_id)


class Uploads:
    """One bucket and one broker. It knows what the bucket has: it lists it once, and writes alone.

    A directory that was away, or is another one, is listed anew.
    """

    def __init__(self, fs: FileSystem, bucket: Bucket, wall_ns: Callable[[], int]) -> None:
        self._fs = fs
        self._bucket = bucket
        self._wall_ns = wall_ns
        self._identity: object = None
        self._held: dict[Place, Holding] | None = None
        self._seen: set[Place] = set()
        self._stored: dict[Place, bytes] = {}
        """The newest state of each topic, as it was stored."""
        self._conflicts: set[str] = set()
        self._settled: dict[Place, tuple[object, ...]] = {}
        """What each topic looked like when nothing was left to do, but for a state that was not due."""

    def round(
        self, topics: Iterable[TopicOnDisk], present: Collection[Place], stopped: Callable[[], bool] = lambda: False
    ) -> Round:
        """Go through all topics once.

        Args:
            present: all that the broker has, also those that are being deleted. What was seen before and is not here any more
                was deleted.
            stopped: asked before each object: True ends the round.

        Raises: BucketError; what was not done is done by the next round.
        """
        done = Round()
        identity = self._bucket.identity()
        if self._held is None or identity != self._identity:
            if self._held is not None:
                logger.warning("the bucket was away, or is another directory: what it lacks is uploaded again")
            self._held = holdings(self._bucket.keys())
            self._identity = identity
            self._stored.clear()
            self._conflicts.clear()
            self._settled.clear()
        for place in self._seen - {*present}:
            self._held.setdefault(place, Holding()).deleted = True
            self._bucket.put(deleted_key(place), b"")
            self._seen.discard(place)
        for place, holding in [*self._held.items()]:
            if holding.deleted:
                self._end_deletion(place, holding, present, done)
        for topic in topics:
            if stopped():
                break
            self._seen.add(topic.place)
            self._bring(topic, self._held.setdefault(topic.place, Holding()), done, stopped)
        return done

    def _end_deletion(self, place: Place, holding: Holding, present: Collection[Place], done: Round) -> None:
        assert self._held is not None
        if place not in present:  # else the disk refused, and it is there again
            for key in keys_of(place, holding):
                self._bucket.delete(key)
                done.deleted += 1
        self._bucket.delete(deleted_key(place))
        holding.deleted = False
        if place not in present:
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
            bases = list_bases(self._fs, topic.path)
        except FileNotFoundError:  # it is being deleted
            return
        todo = plan(bases, topic.committed_id, holding, is_removed)
        following = dict(pairwise(bases))
        for first_id in todo.upload:
            if stopped():
                return
            self._upload(topic, first_id, following[first_id], holding, done)
        if state is not None:
            self._store_state(topic.place, state, holding, todo)
        for first_id in todo.delete:
            delete_segment(self._bucket, topic.place, first_id, holding)
            done.deleted += 1
        if all(map(holding.is_whole, todo.upload)) and len(bases) == topic.log[1]:  # else one waits to be unlinked
            self._settled[topic.place] = look

    def _stamp(self, path: str) -> object:
        try:
            return self._fs.stamp(path)
        except OSError:
            return None

    def _read_state(self, topic: TopicOnDisk) -> tuple[bytes | None, Callable[[int], bool]]:
        """The state to store, none when the offsets are damaged, and what says which ids were removed."""
        loaded = offsets.load(self._fs, topic.path)
        known = loaded.state
        state = State(
            topic.committed_id,
            offsets.encode(known, topic.place.topic) if known != offsets.OffsetsState() else None,
            read_if_there(self._fs, f"{topic.path}/{topic_settings.FILE_NAME}"),
        )
        return (None if loaded.source is offsets.OffsetsSource.LOST else state.encode()), known.has_removed

    def _upload(self, topic: TopicOnDisk, first_id: int, next_id: int, holding: Holding, done: Round) -> None:
        key = segment_key(topic.place, first_id)
        if key in self._conflicts:
            return
        data = read_if_there(self._fs, f"{topic.path}/{segment_name(first_id)}")
        if data is None or topic_settings.load(self._fs, topic.path).incarnation != topic.place.incarnation:
            return  # retention was quicker; or it was read from a topic that was made anew
        holding.segments.add(first_id)  # also if the answer is lost: it may be there
        if not store_segment(self._bucket, topic.place, first_id, data, next_id):
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
        """Store a state if it is due, for the first time, or the reason why a segment goes."""
        if state == self._stored.get(place) or (place in self._stored and not todo.delete and not self._state_is_due(holding)):
            return
        at = max(self._wall_ns(), max(holding.states, default=0) + 1)
        holding.states.add(at)  # also if the answer is lost: it may be there
        self._bucket.put(state_key(place, at), state)
        self._stored[place] = state
        for old in sorted(holding.states)[:-STATES_KEPT]:
            self._bucket.delete(state_key(place, old))
            holding.states.discard(old)
