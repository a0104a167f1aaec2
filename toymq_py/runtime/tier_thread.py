"""The thread that keeps the bucket of ``--tier`` up to date, beside the loop: a slow bucket delays no publish."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager, suppress
from queue import SimpleQueue

from toymq_py.broker import Broker
from toymq_py.clock import SystemClock
from toymq_py.metrics import Metrics
from toymq_py.storage.commit.sync_threads import run_guarded
from toymq_py.storage.fs import RealFileSystem
from toymq_py.threads import start_thread
from toymq_py.tier.bucket import BucketError, open_bucket
from toymq_py.tier.cold import DIRECTORY_NAME, ColdReads
from toymq_py.tier.keys import Place
from toymq_py.tier.marker import Marker
from toymq_py.tier.uploads import Round, TopicOnDisk, Uploads
from toymq_py.units import counted

logger = logging.getLogger("toymq_py.tier")

INTERVAL_S = 2.0
"""The pause between two rounds: a sealed segment is in the bucket after this pause and the time of its upload."""
BACKOFF_MAX_S = 60.0
STOP_S = 2.0
"""How long a shutdown waits for a put that is under way; the next start makes it again."""

Look = tuple[list[TopicOnDisk], set[Place]]


def look_at(broker: Broker, *, sizes: bool = False) -> Look:
    """List the topics for an upload round, with the segments that may leave the disk and, if asked for, the sizes of sealed
    segments that are not in the bucket; and the places in the bucket of all topics that the broker has. A topic's place
    includes its incarnation: a topic with sealed segments but none gets one, and is listed later. Belongs to the event loop."""
    topics, present = [], set()
    for name, topic in broker.topics.items():
        incarnation, segments = topic.settings_queue.incarnation, topic.log.segments
        if incarnation is not None:
            place = Place(name, incarnation)
            present.add(place)
            if not topic.deleted:
                log = (segments[0].base_id, len(segments)) if segments else (0, 0)
                sealed = [(each.base_id, each.end) for each in segments[:-1] if each.sha256 is None] if sizes else []
                topics.append(TopicOnDisk(place, topic.path, topic.next_id, log, topic.retention.evictable(), sealed))
        elif len(segments) > 1 and not topic.deleted:
            topic.settings_queue.identify(lambda: None)
    return topics, present


def evict(broker: Broker, proven: Mapping[Place, Mapping[int, str]]) -> None:
    """Unlink local segments whose complete copies are in the bucket. Belongs to the event loop."""
    for place, segments in proven.items():
        topic = broker.topics.get(place.topic)
        if topic is not None and topic.settings_queue.incarnation == place.incarnation:
            topic.retention.evict(segments)


class TierThread:
    """Uploads in rounds, one every ``INTERVAL_S``. After each failed round the pause doubles. ``stop`` ends the thread."""

    def __init__(
        self, look: Callable[[], Look], loop: asyncio.AbstractEventLoop, uploads: Uploads, metrics: Metrics, url: str,
        evict: Callable[[Mapping[Place, Mapping[int, str]]], None] = lambda proven: None,
        local_max_bytes: int = 0,
        fall_behind: Callable[[str | None], None] = lambda why: None,
    ) -> None:  # fmt: skip
        """
        Args:
            look, evict, fall_behind: called on the loop.
            metrics: this thread alone sets the metrics of uploads.
            local_max_bytes: while more bytes than this are sealed and not in the bucket, ``fall_behind`` gets the reason, then
                None; 0: no limit.
        """
        self._look = look
        self._loop = loop
        self._uploads = uploads
        self._evict = evict
        self._local_max_bytes = local_max_bytes
        self._fall_behind = fall_behind
        self._is_behind = False
        self._metrics = metrics
        self._url = url
        self._stop = threading.Event()
        self._pause_s = INTERVAL_S
        self._failing = False

    def start(self) -> None:
        """Start the thread. Raises: OSError when the machine has no thread left."""
        self._thread = start_thread(self._run, "toymq-tier")

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(STOP_S)

    def _run(self) -> None:
        try:
            waited_s = 0.0
            while not self._stop.wait(INTERVAL_S):
                waited_s += INTERVAL_S
                look = self._ask()
                if look is None:
                    return
                if waited_s >= self._pause_s:
                    self.round(*look)
                    waited_s = 0.0
                self.compare(look[0])
        except Exception as error:
            self._metrics.tier_failing = 1
            self._metrics.tier_problem = f"a bug, nothing more is uploaded until a restart: {error!r}"
            logger.exception("bug in the tier: nothing more is uploaded until a restart")

    def round(self, topics: list[TopicOnDisk], present: set[Place]) -> Round | None:
        """Upload what the bucket lacks, and delete what it holds of removed segments. Returns: the result; None when it
        failed."""
        try:
            done = self._uploads.round(topics, present, self._stop.is_set)
        except (BucketError, OSError) as error:
            if not self._failing:
                logger.error("tier %s: %s: what is sealed stays on the disk, and is tried again", self._url, error)  # noqa: TRY400
            self._failing, self._pause_s = True, min(self._pause_s * 2, BACKOFF_MAX_S)
            self._metrics.tier_failing, self._metrics.tier_problem = 1, str(error)
            return None
        if self._failing:
            logger.warning("tier %s: works again", self._url)
        self._failing, self._pause_s = False, INTERVAL_S
        problem = self._uploads.problem()
        self._metrics.tier_failing, self._metrics.tier_problem = int(problem is not None), problem
        self._metrics.tier_uploaded_bytes_total += done.uploaded_bytes
        if done.proven:
            self._tell(lambda: self._evict(done.proven))
        if done.segments or done.deleted:
            deleted = f", {counted(done.deleted, 'object')} deleted: retention, PURGE or DELETE removed them from the topic"
            logger.info("tier %s: %s (%d bytes) uploaded%s", self._url,
                        counted(done.segments, "segment"), done.uploaded_bytes, deleted * bool(done.deleted))  # fmt: skip
        return done

    def compare(self, topics: list[TopicOnDisk]) -> None:
        """Tell the loop while the bucket lacks more than ``local_max_bytes``, and when it has caught up."""
        if not self._local_max_bytes:
            return
        lacking = self._uploads.behind_bytes(topics)
        is_behind = lacking > self._local_max_bytes
        if is_behind or self._is_behind:
            why = f"{lacking} bytes are sealed and not in the bucket, more than {self._local_max_bytes} (--tier-local-max)"
            self._tell(lambda: self._fall_behind(why if is_behind else None))
        self._is_behind = is_behind

    def _tell(self, call: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(call)

    def _ask(self) -> Look | None:
        """Call ``look`` on the loop and wait for its result. Returns: None when the loop ended, or ``stop`` was called
        meanwhile."""
        answer: Future[Look] = Future()

        def tell() -> None:
            try:
                answer.set_result(self._look())
            except Exception as error:  # noqa: BLE001 (it is raised on the thread)
                answer.set_exception(error)

        try:
            self._loop.call_soon_threadsafe(tell)
        except RuntimeError:  # the loop is closed
            return None
        while not self._stop.is_set():
            try:
                return answer.result(0.2)
            except NotYet:
                continue
        return None


class FetchThreads:
    """The two threads that fetch from the bucket for readers: a slow fetch does not hold up the others."""

    def __init__(self, loop: asyncio.AbstractEventLoop, count: int = 2) -> None:
        """Raises: OSError when the machine has no thread left."""
        self._loop = loop
        self._work: SimpleQueue[tuple[Callable[[], None], Callable[[], None]]] = SimpleQueue()
        for number in range(count):
            start_thread(self._run, f"toymq-fetch-{number}")

    def offload(self, job: Callable[[], None], done: Callable[[], None]) -> None:
        """Run ``job`` on a thread, then ``done`` on the loop, also if ``job`` failed."""
        self._work.put((job, done))

    def _run(self) -> None:
        while True:
            job, done = self._work.get()
            run_guarded(job)
            try:
                self._loop.call_soon_threadsafe(done)
            except RuntimeError:  # the loop is closed
                return


@contextmanager
def tiered(url: str, broker: Broker, loop: asyncio.AbstractEventLoop, cache_bytes: int, local_max_bytes: int) -> Iterator[None]:
    """Keep a bucket up to date while a broker runs, and serve reads of segments that only the bucket has. Raises: ConfigError,
    OSError."""
    fs = RealFileSystem()
    bucket = open_bucket(url, fs)
    uploads = Uploads(fs, bucket, SystemClock.wall_ns, Marker(fs, bucket, url, broker.directory.path).settle)
    thread = TierThread(
        lambda: look_at(broker, sizes=local_max_bytes > 0), loop, uploads, broker.metrics, url,
        lambda proven: evict(broker, proven), local_max_bytes, broker.space.fall_behind,
    )  # fmt: skip
    broker.metrics.tier_url = url
    broker.files.cold = ColdReads(
        fs, open_bucket(url, fs, read_only=True), f"{broker.directory.path}/{DIRECTORY_NAME}", cache_bytes=cache_bytes,
        files=broker.files, metrics=broker.metrics, place_of=lambda topic: place_of(broker, topic),
        offload=FetchThreads(loop).offload, later=loop.call_later,
    )  # fmt: skip
    thread.start()
    try:
        yield
    finally:
        thread.stop()


def place_of(broker: Broker, name: str) -> Place | None:
    """The place of a topic's objects in the bucket; None for a topic that does not exist or has no incarnation yet."""
    topic = broker.topics.get(name)
    incarnation = None if topic is None else topic.settings_queue.incarnation
    return None if incarnation is None else Place(name, incarnation)
