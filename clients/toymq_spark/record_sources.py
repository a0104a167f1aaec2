"""Sources of records with one interface, ``Logs``: a broker, or a data directory. ``bucket_logs`` has others.

Knows nothing of Spark. For one thread: each Spark task opens its own.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from toymq.requests import TopicRange
from toymq_py.errors import DamagedData, IsPartitioned, NoSuchTopic, OutOfRange
from toymq_py.names import PARTITION_MARK, whole_name
from toymq_py.partitions import number_of
from toymq_py.records import IdRange
from toymq_py.storage.reader import DirectoryReader, RecordRun, TopicReader, Walk
from toymq_py.storage.record import Stop, valid_frame
from toymq_py.tier.reader import SealedSegment
from toymq_spark.broker import RetryingClient
from toymq_spark.options import BrokerAddress

T = TypeVar("T")
FETCH_COUNT_MAX = 10_000
FETCH_BYTES_MAX = 256 << 10
"""Bytes per request: a millisecond of the broker's loop, for which a publish may wait. Larger requests are not faster."""
POLL_INTERVAL_S = 0.1
"""Interval at which a waiting stream checks a directory, or several topics."""
AT_MS_MAX = 2**63 // 1_000_000
"""In the year 2262: the latest time of a record, and of a request to a broker."""


class Logs(Protocol):
    """A source of topics and their records. All methods may raise OSError, ToymqError and BucketError."""

    def topics(self) -> list[str]: ...

    def partitions(self, topic: str) -> list[str]:
        """Return the partitions of a partitioned topic; for any other name, a list of the name itself."""

    def bounds(self, topic: str) -> TopicRange:
        """Return a topic's first retained id, next id and incarnation. Raises: NoSuchTopic."""

    def removed(self, topic: str, incarnation: str | None = None) -> list[IdRange]:
        """Return the id ranges in the middle of a log, both ends included, that were removed on purpose: by retention, a
        restore or a repair. Readers skip them. Empty for a topic that is gone, or has another incarnation."""

    def id_at_time(self, topic: str, at_ms: int) -> int:
        """Return the id of the first record at or after a time; the next id if there is none. Raises: NoSuchTopic."""

    def history(self, topic: str, incarnation: str | None, start: int, end: int, *, again: bool = False) -> list[SealedSegment]:
        """Return the segments at the beginning of an id range that are to be read in a bucket. ``again``: in a repeated batch,
        in which all ids below ``end`` were read there. Raises: NoSuchTopic."""

    def read(
        self, topic: str, from_id: int, to_id: int, walk: Walk[T], incarnation: str | None = None, segments: Sequence[int] = ()
    ) -> Iterator[RecordRun[T]]:
        """Yield the records of an id range in runs of consecutive ids; missing ids are skipped. ``segments``: first ids of the
        segments that ``history`` returned for the range. Raises: OutOfRange; NoSuchTopic, also for a topic of another
        incarnation; SegmentLost."""

    def wait(self, topic: str, next_id: int, seconds: float) -> None:
        """Wait, at most ``seconds``, until the topic's next id is above ``next_id``."""

    def close(self) -> None: ...


class BrokerLogs:
    """The topics of a broker. Requests that fail because the broker restarts are retried."""

    def __init__(self, address: BrokerAddress, sleep: Callable[[float], None] = time.sleep) -> None:
        self._broker = RetryingClient(address, sleep)
        self._sleep = sleep
        self._parts: dict[str, list[str]] = {}

    def partitions(self, topic: str) -> list[str]:
        if topic not in self._parts:  # their number is fixed
            try:
                self.bounds(topic)
            except NoSuchTopic:
                return [topic]  # it may come, with or without
            except IsPartitioned as error:
                self._parts[topic] = [f"{topic}{PARTITION_MARK}{number}" for number in range(error.partitions)]
            else:
                self._parts[topic] = [topic]
        return self._parts[topic]

    def topics(self) -> list[str]:
        return sorted(found["topic"] for found in self.described())

    def described(self) -> list[dict[str, Any]]:
        """Return the broker's topics with their consumers (protocol.md, "JSON shapes"). Raises: OSError, ToymqError."""
        return self._broker.call("listing topics", lambda client: client.topics())

    def bounds(self, topic: str) -> TopicRange:
        return self._broker.call(f"reading {topic}", lambda client: client.topic_range(topic))

    def removed(self, topic: str, incarnation: str | None = None) -> list[IdRange]:
        try:
            found = self._broker.call(f"reading {topic}", lambda client: client.describe(topic))
        except NoSuchTopic:
            return []
        same = incarnation in (None, found["incarnation"])
        return [(first, last) for first, last in found.get("removed", ())] if same else []

    def id_at_time(self, topic: str, at_ms: int) -> int:
        return self._broker.call(f"reading {topic}", lambda client: client.offsets(topic, at_ms=min(at_ms, AT_MS_MAX)))[0]

    def history(self, topic: str, incarnation: str | None, start: int, end: int, *, again: bool = False) -> list[SealedSegment]:
        return []

    def read(
        self, topic: str, from_id: int, to_id: int, walk: Walk[T], incarnation: str | None = None, segments: Sequence[int] = ()
    ) -> Iterator[RecordRun[T]]:
        while from_id < to_id:
            batch = self._fetch(topic, from_id, min(to_id - from_id, FETCH_COUNT_MAX), incarnation=incarnation)
            if batch.next_id <= from_id:
                return  # the log ends here
            yield from runs_of(batch.frames, to_id, walk)
            from_id = batch.next_id

    def wait(self, topic: str, next_id: int, seconds: float) -> None:
        try:
            self._fetch(topic, next_id, 1, wait_s=seconds)
        except (NoSuchTopic, OutOfRange):  # missing or recreated: its bounds will tell
            self._sleep(min(seconds, POLL_INTERVAL_S))

    def close(self) -> None:
        self._broker.close()

    def _fetch(self, topic: str, from_id: int, count: int, wait_s: float = 0.0, incarnation: str | None = None) -> Any:
        return self._broker.call(
            f"reading {topic}",
            lambda client: client.fetch(
                topic, from_id, count, max_bytes=FETCH_BYTES_MAX, wait=wait_s, incarnation=incarnation
            ),
        )


def runs_of(frames: bytes, to_id: int, walk: Walk[T]) -> Iterator[RecordRun[T]]:
    """Parse the body of a BATCH reply to runs of records with consecutive ids. Raises: DamagedData for invalid records."""
    pos = 0
    while pos < len(frames):
        found = valid_frame(frames, pos)
        if found is None:
            raise DamagedData(f"the broker sent an invalid record at byte {pos} of a batch")
        first_id = found[0]
        if first_id >= to_id:
            return
        pos, next_id, stop, seen = walk(frames, pos, first_id, to_id - first_id)
        yield RecordRun(first_id, next_id, seen)
        if stop is Stop.COUNT:
            return


def among(present: list[str], topic: str) -> list[str]:
    """Return the partitions of a topic that are among the names ``present``; the topic itself if it is there, or no partition
    is."""
    parts = [name for name in present if whole_name(name) == topic and name != topic]
    return [topic] if topic in present or not parts else sorted(parts, key=lambda name: number_of(name) or 0)


class DirectoryLogs:
    """The topics in a data directory or a backup. A topic is opened again each time its bounds are requested."""

    def __init__(self, path: str, sleep: Callable[[float], None] = time.sleep) -> None:
        """Check the directory. Raises: DataDirectoryError."""
        self._directory = DirectoryReader(path)
        self._sleep = sleep
        self._open: dict[str, TopicReader] = {}

    def topics(self) -> list[str]:
        return self._directory.topics()

    def partitions(self, topic: str) -> list[str]:
        return among(self.topics(), topic)

    def bounds(self, topic: str) -> TopicRange:
        found = self._open[topic] = self._directory.topic(topic)
        return TopicRange(found.first_id, found.next_id, found.incarnation)

    def removed(self, topic: str, incarnation: str | None = None) -> list[IdRange]:
        try:
            found = self._directory.topic(topic)
        except NoSuchTopic:
            return []
        return found.removed if incarnation in (None, found.incarnation) else []

    def id_at_time(self, topic: str, at_ms: int) -> int:
        return self._topic(topic).id_at_time(min(at_ms, AT_MS_MAX) * 1_000_000)

    def history(self, topic: str, incarnation: str | None, start: int, end: int, *, again: bool = False) -> list[SealedSegment]:
        return []

    def read(
        self, topic: str, from_id: int, to_id: int, walk: Walk[T], incarnation: str | None = None, segments: Sequence[int] = ()
    ) -> Iterator[RecordRun[T]]:
        found = self._topic(topic)
        if incarnation is not None and found.incarnation not in (None, incarnation):
            raise NoSuchTopic(f"{topic} was made anew: its incarnation is {found.incarnation}, and not {incarnation}")
        return found.read(from_id, to_id, walk)

    def wait(self, topic: str, next_id: int, seconds: float) -> None:
        self._sleep(min(seconds, POLL_INTERVAL_S))

    def close(self) -> None:
        self._open.clear()

    def _topic(self, topic: str) -> TopicReader:
        if topic not in self._open:
            self._open[topic] = self._directory.topic(topic)
        return self._open[topic]
