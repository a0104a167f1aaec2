"""Reads of segments that only the bucket has: each is fetched on a thread, checked, and cached as a file for a while.

    reader ── use ──▶ not here: BeingFetched ── a thread: get, SHA-256, file, scan ──▶ adopt, wake the waiting readers
                                                  └── failed: wake the readers, and try again later ──┘

A reader that begins in the middle of a large segment gets a part of it (``parts``). For a sequential reader the next part or
segment is fetched ahead. Only one fetch of a segment runs at a time. Nothing is kept over a restart.
"""

import hashlib
import logging
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from toymq_py.callbacks import call_all
from toymq_py.disk_errors import BeingFetched
from toymq_py.metrics import Metrics
from toymq_py.storage.evicted import Adopt, send_away
from toymq_py.storage.fs import FileSystem, remove_tree
from toymq_py.storage.open_files import OpenFiles
from toymq_py.storage.scanner import ScanResult, scan_segment
from toymq_py.storage.segment import Segment
from toymq_py.tier.bucket import Bucket, BucketError, check_there
from toymq_py.tier.keys import Place, segment_key
from toymq_py.tier.objects import Span
from toymq_py.tier.parts import PARTED_MIN_BYTES, fetch_part, load_parts, part_of, write_cached

logger = logging.getLogger("toymq_py.tier")

RETRY_MIN_S, RETRY_MAX_S = 1.0, 30.0
"""The delay before a fetch that failed is made again; twice as long each time."""
UNASKED_MAX = 10
"""Most tries of a fetch while no reader waits: a reader that got an error may not come again."""
DIRECTORY_NAME = "tier-cache"
KEPT_MIN = 3
"""The number of segments or parts that are kept whatever their size: one that is read, the one ahead, and one of another
reader."""
SEALS_KEPT = 64
"""The number of segments of which the parts are remembered."""


@dataclass(slots=True)
class _Fetch:
    """The fetch of a segment, either running or failed."""

    topic: str
    segment: Segment
    adopt: Adopt
    from_id: int | None = None
    """The id in the wanted part of the segment; None: all of it is wanted."""
    is_ahead: bool = False
    waiting: list[Callable[[], None]] = field(default_factory=list)
    problem: str | None = None
    retry_s: float = RETRY_MIN_S
    unasked: int = 0
    """The number of tries since a reader waited for it."""


@dataclass(slots=True)
class _Outcome:
    """The outcome of one try to fetch. It failed if there is neither a scan nor a part."""

    path: str
    scan: ScanResult | None = None
    part: Segment | None = None
    known: Sequence[Span] = ()
    """The parts of the segment."""
    problem: str = "it could not be fetched"


class ColdReads:
    """The implementation of ``Cold`` for a bucket. Belongs to the event loop; ``offload`` runs the fetches on threads."""

    def __init__(
        self,
        fs: FileSystem,
        bucket: Bucket,
        directory: str,
        *,
        cache_bytes: int,
        files: OpenFiles,
        metrics: Metrics,
        place_of: Callable[[str], Place | None],
        offload: Callable[[Callable[[], None], Callable[[], None]], None],
        later: Callable[[float, Callable[[], None]], object],
    ) -> None:
        """
        Args:
            directory: for the cached files; it is made, and its content is removed.
            cache_bytes: the most bytes of all cached files.
            files: limits the open files.
            place_of: returns the place of a topic's objects in the bucket; None without one.
            offload: runs a job on a thread that may wait for the bucket, then its callback on the event loop.
            later: calls a function after a number of seconds.

        Raises: OSError.
        """
        self._fs = fs
        self._bucket = bucket
        self._directory = directory
        self._cache_bytes = cache_bytes
        self._files = files
        self._metrics = metrics
        self._place_of = place_of
        self._offload = offload
        self._later = later
        self._fetches: dict[int, _Fetch] = {}
        self._kept: OrderedDict[int, tuple[Segment, Segment]] = OrderedDict()
        """The segments or parts that are on the disk, each with its whole segment. By identity of the first, the one that was
        not used for longest first."""
        self._parts: dict[int, list[Segment]] = {}
        """The parts that are on the disk, by identity of their segment, ascending."""
        self._known: OrderedDict[int, tuple[Segment, Sequence[Span]]] = OrderedDict()
        """The parts of segments, on the disk or not, by identity of the segment, the oldest first."""
        self._kept_bytes = 0
        self._ahead: set[int] = set()
        """The identities of segments or parts that were fetched ahead, and not read yet."""
        self._count = 0
        remove_tree(fs, directory)
        fs.mkdir(directory)

    # -- Cold

    def use(self, topic: str, following: Sequence[Segment], from_id: int, adopt: Adopt) -> Segment:
        segment = following[0]
        held = segment if segment.cached_path is not None else self._part_with(segment, from_id)
        goes_on = id(segment) in self._ahead or (held is None and from_id == segment.base_id)
        if held is not None:
            self._kept.move_to_end(id(held))
            if held is not segment and from_id >= held.base_id + (held.next_id - held.base_id) * 3 // 4:  # near its end
                goes_on = held.next_id == segment.next_id
                if not goes_on and self._part_with(segment, held.next_id) is None:
                    self._begin(topic, segment, adopt, held.next_id, is_ahead=True)
        if goes_on and len(following) > 1 and following[1].is_away:
            self._begin(topic, following[1], adopt, None, is_ahead=True)
        self._ahead.discard(id(segment))
        if held is None:
            is_part = from_id > segment.base_id and segment.end >= PARTED_MIN_BYTES
            fetch = self._begin(topic, segment, adopt, from_id if is_part else None)
            raise BeingFetched(segment.path, lambda call: self._wait(fetch, call), fetch.problem)
        return held

    def _part_with(self, segment: Segment, msg_id: int) -> Segment | None:
        """The cached part that has a record; None without one."""
        parts = self._parts.get(id(segment), ())
        at = bisect_right(parts, msg_id, key=lambda part: part.base_id) - 1
        return parts[at] if at >= 0 and msg_id < parts[at].next_id else None

    def spoilt(self, segment: Segment) -> None:
        if id(segment) in self._kept:
            logger.warning("%s, which was fetched, was damaged or removed: it is fetched again", segment.cached_path)
            self._drop(segment)

    def problem(self, segments: Iterable[Segment]) -> str | None:
        if not self._fetches:
            return None
        found = (self._fetches.get(id(segment)) for segment in segments)
        return next((fetch.problem for fetch in found if fetch is not None and fetch.problem is not None), None)

    def _wait(self, fetch: _Fetch, call: Callable[[], None]) -> None:
        if self._fetches.get(id(fetch.segment)) is fetch:
            fetch.waiting.append(call)
        else:
            call()

    # -- fetching

    def _begin(self, topic: str, segment: Segment, adopt: Adopt, from_id: int | None, *, is_ahead: bool = False) -> _Fetch:
        """Start to fetch a segment, or the part of it with ``from_id``, unless a fetch of it runs. Waiting readers retry
        afterwards."""
        fetch = self._fetches.get(id(segment))
        if fetch is not None and not is_ahead:
            fetch.unasked = 0
        if fetch is None:
            fetch = self._fetches[id(segment)] = _Fetch(topic, segment, adopt, from_id, is_ahead)
            if is_ahead and from_id is None:
                self._ahead.add(id(segment))
            self._try(fetch)
        return fetch

    def _try(self, fetch: _Fetch) -> None:
        self._count += 1
        segment, outcome = fetch.segment, _Outcome(f"{self._directory}/{self._count:020d}.log")
        place, from_id = self._place_of(fetch.topic), fetch.from_id
        base_id, next_id, sha256 = segment.base_id, segment.next_id, segment.sha256
        is_known = id(segment) in self._known
        if is_known:
            outcome.known = self._known[id(segment)][1]

        def job() -> None:
            if place is None:
                outcome.problem = "the topic has no incarnation, so its objects are not known"
                return
            try:
                if from_id is not None:
                    if not is_known:
                        outcome.known = load_parts(self._bucket, place, segment)
                    if outcome.known:
                        part = part_of(outcome.known, from_id)
                        outcome.part = fetch_part(self._fs, self._bucket, place, segment, part, outcome.path)
                    if outcome.part is not None:
                        return
                    outcome.known = ()
                key = segment_key(place, base_id)
                data = self._bucket.get(key)
                if data is None:
                    check_there(self._bucket)
                    outcome.problem = f"{key} is gone from the bucket"
                elif hashlib.sha256(data).hexdigest() != sha256:
                    outcome.problem = f"{key} in the bucket is damaged, or of another topic: it is not what was evicted"
                else:
                    write_cached(self._fs, outcome.path, data)
                    outcome.scan = scan_segment(self._fs, outcome.path, base_id, next_id=next_id)
            except (BucketError, OSError) as error:
                outcome.problem = str(error)

        self._offload(job, lambda: self._end(fetch, outcome))

    def _end(self, fetch: _Fetch, outcome: _Outcome) -> None:
        segment, waiting, fetch.waiting = fetch.segment, fetch.waiting, []
        if outcome.scan is not None or outcome.part is not None:
            del self._fetches[id(segment)]
            if fetch.from_id is not None:
                self._note_parts(segment, outcome.known)
            if outcome.scan is not None:
                segment.cached_path = outcome.path
                self._keep(segment, segment)
                fetch.adopt(segment, outcome.scan)
                for part in [*self._parts.get(id(segment), ())]:
                    self._drop(part)
            elif outcome.part is not None:
                self._keep(outcome.part, segment)
                parts = self._parts.setdefault(id(segment), [])
                parts.append(outcome.part)
                parts.sort(key=lambda part: part.base_id)
            self._make_room()
            if fetch.problem is not None:
                logger.warning("%s was fetched from the bucket: its readers go on", segment.path)
        elif fetch.is_ahead and not waiting:
            self._forget(fetch)
        else:
            if fetch.problem is None:
                logger.error("%s cannot be fetched from the bucket: %s: what reads it waits", segment.path, outcome.problem)
            fetch.problem = outcome.problem
            self._later(fetch.retry_s, lambda: self._again(fetch))
            fetch.retry_s = min(2 * fetch.retry_s, RETRY_MAX_S)
        self._show()
        call_all(waiting)

    def _note_parts(self, segment: Segment, known: Sequence[Span]) -> None:
        self._known[id(segment)] = segment, known
        if len(self._known) > SEALS_KEPT:
            self._known.popitem(last=False)

    def _again(self, fetch: _Fetch) -> None:
        fetch.unasked = 0 if fetch.waiting else fetch.unasked + 1
        if fetch.unasked < UNASKED_MAX:
            self._try(fetch)
        else:
            self._forget(fetch)
            self._show()

    def _forget(self, fetch: _Fetch) -> None:
        """Forget the fetch of a segment that no reader waits for; the next reader starts a new one."""
        del self._fetches[id(fetch.segment)]
        self._ahead.discard(id(fetch.segment))

    def _show(self) -> None:
        self._metrics.tier_fetch_failing = int(any(each.problem is not None for each in self._fetches.values()))

    # -- keeping

    def _keep(self, held: Segment, segment: Segment) -> None:
        self._kept[id(held)] = held, segment
        self._kept_bytes += held.end
        self._metrics.tier_fetched_bytes_total += held.end

    def _make_room(self) -> None:
        while self._kept_bytes > self._cache_bytes and len(self._kept) > KEPT_MIN:
            self._drop(next(iter(self._kept.values()))[0])

    def _drop(self, held: Segment) -> None:
        _, segment = self._kept.pop(id(held))
        self._kept_bytes -= held.end
        path = held.cached_path
        self._files.close(held)
        if held is segment:
            self._ahead.discard(id(segment))
            send_away(segment)
        else:
            parts = self._parts[id(segment)]
            parts[:] = [part for part in parts if part is not held]
            if not parts:
                del self._parts[id(segment)]

        def unlink() -> None:
            try:
                self._fs.unlink(f"{path}")
            except OSError as error:
                logger.warning("%s not removed: %s", path, error)

        self._offload(unlink, lambda: None)
