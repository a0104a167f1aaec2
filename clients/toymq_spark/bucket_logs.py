"""Topics in an object store's bucket as a source of records: the bucket alone, or a broker together with the bucket of its
tier.

Knows nothing of Spark. For one thread. Credentials come from the environment of the process that reads.
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from toymq.requests import TopicRange
from toymq_py.errors import NoSuchTopic
from toymq_py.records import IdRange
from toymq_py.storage.id_ranges import subtract
from toymq_py.storage.reader import RecordRun, Walk
from toymq_py.tier.bucket import BucketError
from toymq_py.tier.keys import Place
from toymq_py.tier.reader import BucketReader, BucketTopic, SealedSegment, SegmentLost
from toymq_spark.record_sources import AT_MS_MAX, Logs, among
from toymq_spark.spans import overlapping, whole

logger = logging.getLogger("toymq_spark")

T = TypeVar("T")

LISTING_MAX_AGE_S = 30.0
"""A listing is used so long: that of a long history takes seconds, and stores charge for it."""


@contextmanager
def named(url: str) -> Iterator[None]:
    """Add the bucket's URL to the text of an error. Raises: BucketError."""
    try:
        yield
    except BucketError as error:
        raise BucketError(f"{url}: {error}") from error


class BucketLogs:
    """The topics in a bucket, without a broker. Only sealed segments are there: a topic ends after its last sealed segment."""

    def __init__(
        self, url: str, reader: BucketReader,
        sleep: Callable[[float], None] = time.sleep, monotonic: Callable[[], float] = time.monotonic,  # noqa: TID251
    ) -> None:  # fmt: skip
        self._url = url
        self._reader = reader
        self._sleep = sleep
        self._monotonic = monotonic
        self._known: dict[str, tuple[float, BucketTopic]] = {}

    def topics(self) -> list[str]:
        with named(self._url):
            return self._reader.topics()

    def partitions(self, topic: str) -> list[str]:
        try:
            self._topic(topic)
        except NoSuchTopic:
            return among(self.topics(), topic)
        return [topic]

    def bounds(self, topic: str) -> TopicRange:
        found = self._topic(topic)
        return TopicRange(found.first_id, found.next_id, found.place.incarnation)

    def removed(self, topic: str, incarnation: str | None = None) -> list[IdRange]:
        try:
            found = self._topic(topic)
        except NoSuchTopic:
            return []
        return [*found.removed] if incarnation in (None, found.place.incarnation) else []

    def id_at_time(self, topic: str, at_ms: int) -> int:
        with named(self._url):
            return self._reader.id_at_time(self._topic(topic), min(at_ms, AT_MS_MAX) * 1_000_000)

    def history(self, topic: str, incarnation: str | None, start: int, end: int, *, again: bool = False) -> list[SealedSegment]:
        return overlapping(self._topic(topic).segments, start, end)

    def read(
        self, topic: str, from_id: int, to_id: int, walk: Walk[T], incarnation: str | None = None, segments: Sequence[int] = ()
    ) -> Iterator[RecordRun[T]]:
        with named(self._url):
            place = self._topic(topic).place if incarnation is None else Place(topic, incarnation)
            if not segments:
                found = overlapping(self._reader.segments(place), from_id, to_id)
                segments, to_id = [each.first_id for each in found], min(to_id, found[-1].next_id if found else from_id)
            yield from self._reader.read(place, segments, from_id, to_id, walk)

    def wait(self, topic: str, next_id: int, seconds: float) -> None:
        self._sleep(seconds)

    def close(self) -> None:
        self._known.clear()

    def _topic(self, topic: str) -> BucketTopic:
        now = self._monotonic()
        listed_at, found = self._known.get(topic, (0.0, None))
        if found is None or now - listed_at > LISTING_MAX_AGE_S:
            with named(self._url):
                found = self._reader.topic(topic)
            self._known[topic] = now, found
        return found


class TieredLogs:
    """The topics of a broker and of its tier: sealed segments are read in the bucket, later records and all metadata from the
    broker.

    ``alone``: no records are read from the broker, so a topic ends after its last segment in the bucket.
    """

    def __init__(
        self, broker: Logs, url: str, reader: BucketReader, *, alone: bool,
        sleep: Callable[[float], None] = time.sleep, monotonic: Callable[[], float] = time.monotonic,  # noqa: TID251
    ) -> None:  # fmt: skip
        self._broker = broker
        self._url = url
        self._reader = reader
        self._alone = alone
        self._sleep = sleep
        self._monotonic = monotonic
        self._listed: dict[Place, tuple[float, list[SealedSegment]]] = {}

    def topics(self) -> list[str]:
        return self._broker.topics()

    def partitions(self, topic: str) -> list[str]:
        return self._broker.partitions(topic)

    def bounds(self, topic: str) -> TopicRange:
        found = self._broker.bounds(topic)
        if not self._alone:
            return found
        segments = [] if found.incarnation is None else self._segments(Place(topic, found.incarnation), found.next_id)
        return found._replace(next_id=max(found.first_id, min(found.next_id, segments[-1].next_id if segments else 0)))

    def removed(self, topic: str, incarnation: str | None = None) -> list[IdRange]:
        return self._broker.removed(topic, incarnation)

    def id_at_time(self, topic: str, at_ms: int) -> int:
        found = self._broker.id_at_time(topic, at_ms)
        return min(found, self.bounds(topic).next_id) if self._alone else found

    def history(self, topic: str, incarnation: str | None, start: int, end: int, *, again: bool = False) -> list[SealedSegment]:
        if incarnation is None:
            return []
        segments = self._segments(Place(topic, incarnation), end if again else start + 1)
        return overlapping(segments, start, end) if self._alone or again else whole(segments, start, end)

    def read(
        self, topic: str, from_id: int, to_id: int, walk: Walk[T], incarnation: str | None = None, segments: Sequence[int] = ()
    ) -> Iterator[RecordRun[T]]:
        if incarnation is None or not (segments or self._alone):
            yield from self._broker.read(topic, from_id, to_id, walk, incarnation)
            return
        alone = BucketLogs(self._url, self._reader)
        while from_id < to_id:
            try:
                for run in alone.read(topic, from_id, to_id, walk, incarnation, segments):
                    yield run
                    from_id = run.next_id
            except SegmentLost as lost:
                if self._alone:
                    raise
                left = subtract([(lost.first_id, lost.next_id - 1)], self._broker.removed(topic, incarnation))
                if left:
                    logger.warning("topic %s: %s: records %d to %d are read from the broker",
                                   topic, lost, left[0][0], left[-1][1])  # fmt: skip
                    yield from self._broker.read(topic, left[0][0], left[-1][1] + 1, walk, incarnation)
                from_id = lost.next_id
            else:
                return

    def wait(self, topic: str, next_id: int, seconds: float) -> None:
        if self._alone:  # the broker has more, and would answer at once
            self._sleep(seconds)
        else:
            self._broker.wait(topic, next_id, seconds)

    def close(self) -> None:
        self._broker.close()

    def _segments(self, place: Place, reaching: int) -> list[SealedSegment]:
        """The sealed segments of a topic in the bucket, from the newest listing. While that ends below ``reaching``, the bucket
        is listed again from time to time."""
        now = self._monotonic()
        listed_at, segments = self._listed.get(place, (0.0, None))
        if segments is None or ((not segments or segments[-1].next_id < reaching) and now - listed_at > LISTING_MAX_AGE_S):
            with named(self._url):
                segments = self._reader.segments(place)
            self._listed = {known: found for known, found in self._listed.items() if known.topic != place.topic}
            self._listed[place] = now, segments
        return segments
