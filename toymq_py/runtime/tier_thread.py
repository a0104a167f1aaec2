"""The thread that keeps the bucket of ``--tier`` up to date, beside the loop: a bucket that is slow holds no publish."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager

from toymq_py.broker import Broker
from toymq_py.clock import SystemClock
from toymq_py.metrics import Metrics
from toymq_py.storage.fs import RealFileSystem
from toymq_py.threads import start_thread
from toymq_py.tier.bucket import BucketError, open_bucket
from toymq_py.tier.keys import Place
from toymq_py.tier.uploads import Round, TopicOnDisk, Uploads

logger = logging.getLogger("toymq_py.tier")

INTERVAL_S = 2.0
"""Pause between two rounds: a segment is in the bucket so long after its seal, and the time to send it."""
BACKOFF_MAX_S = 60.0
STOP_S = 2.0
"""How long a shutdown waits for a put that is under way; the next start makes it again."""

Look = tuple[list[TopicOnDisk], set[Place]]


def look_at(broker: Broker) -> Look:
    """The topics that have something for the bucket, and all incarnations that the broker has. One with sealed segments and
    without an incarnation gets one: it is in a later look. Belongs to the event loop."""
    topics, present = [], set()
    for name, topic in broker.topics.items():
        incarnation, segments = topic.settings_queue.incarnation, topic.log.segments
        if incarnation is not None:
            place = Place(name, incarnation)
            present.add(place)
            if not topic.deleted:
                log = (segments[0].base_id, len(segments)) if segments else (0, 0)
                topics.append(TopicOnDisk(place, topic.path, topic.next_id, log))
        elif len(segments) > 1 and not topic.deleted:
            topic.settings_queue.identify(lambda: None)
    return topics, present


class TierThread:
    """Makes a round every ``INTERVAL_S``; after an error later, twice as long each time. ``stop`` ends it."""

    def __init__(
        self, look: Callable[[], Look], loop: asyncio.AbstractEventLoop, uploads: Uploads, metrics: Metrics, url: str
    ) -> None:
        """``look`` is called on the loop; the tier's ``metrics`` are set on the thread, the only one that does."""
        self._look = look
        self._loop = loop
        self._uploads = uploads
        self._metrics = metrics
        self._url = url
        self._stop = threading.Event()
        self._pause_s = INTERVAL_S
        self._failing = False

    def start(self) -> None:
        """Raises: OSError when the machine has no thread left."""
        self._thread = start_thread(self._run, "toymq-tier")

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(STOP_S)

    def _run(self) -> None:
        try:
            while not self._stop.wait(self._pause_s):
                look = self._ask()
                if look is None:
                    return
                self.round(*look)
        except Exception:
            self._metrics.tier_failing = 1
            logger.exception("bug in the tier: nothing more is uploaded until a restart")

    def round(self, topics: list[TopicOnDisk], present: set[Place]) -> Round | None:
        """Make a round. Returns: what it did; None when it failed."""
        try:
            done = self._uploads.round(topics, present, self._stop.is_set)
        except (BucketError, OSError) as error:
            if not self._failing:
                logger.error("tier %s: %s: what is sealed stays on the disk, and is tried again", self._url, error)  # noqa: TRY400
            self._failing, self._pause_s = True, min(self._pause_s * 2, BACKOFF_MAX_S)
            self._metrics.tier_failing = 1
            return None
        if self._failing:
            logger.warning("tier %s: works again", self._url)
        self._failing, self._pause_s = False, INTERVAL_S
        self._metrics.tier_failing = 0
        self._metrics.tier_uploaded_bytes_total += done.uploaded_bytes
        if done.segments or done.deleted:
            logger.info("tier %s: %d segments (%d bytes) uploaded, %d objects deleted",
                        self._url, done.segments, done.uploaded_bytes, done.deleted)  # fmt: skip
        return done

    def _ask(self) -> Look | None:
        """Ask the loop. Returns: None when it ended, or ``stop`` was called meanwhile."""
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


@contextmanager
def tiered(url: str, broker: Broker, loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Keep a bucket up to date while a broker runs. Raises: ConfigError, OSError."""
    fs = RealFileSystem()
    uploads = Uploads(fs, open_bucket(url, fs), SystemClock.wall_ns)
    thread = TierThread(lambda: look_at(broker), loop, uploads, broker.metrics, url)
    thread.start()
    try:
        yield
    finally:
        thread.stop()
