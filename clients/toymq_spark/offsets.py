"""Id ranges of a batch: start, end, shares of a limit, ranges of tasks, and lost ids.

Knows nothing of Spark. An id range is [start, end). Spark stores offsets as JSON and compares them as strings, so their form is
fixed: ``{"topic": {"0": id}}``, topics sorted.
"""

import itertools
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from toymq_py.errors import NoSuchTopic
from toymq_spark.errors import DataLoss, OptionError
from toymq_spark.options import EARLIEST, LATEST, Edge, SourceOptions
from toymq_spark.record_sources import Logs

logger = logging.getLogger("toymq_spark")

Offsets = dict[str, int]
"""Next id to read by topic."""


@dataclass(frozen=True, slots=True)
class IdSpan:
    """Ids of one topic that one task reads, ``end`` excluded."""

    topic: str
    start: int
    end: int


def to_json(offsets: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Offsets as Spark stores them."""
    return {topic: {"0": offsets[topic]} for topic in sorted(offsets)}


def from_json(found: Mapping[str, Any]) -> Offsets:
    """The inverse. Raises: OptionError for an invalid checkpoint."""
    try:
        return {topic: int(partitions["0"]) for topic, partitions in found.items()}
    except (KeyError, TypeError, ValueError):
        raise OptionError(f"invalid offsets in the checkpoint: {str(found)[:200]}") from None


def starting(options: SourceOptions, logs: Logs, *, missing_is_empty: bool) -> Offsets:
    """First id to read, by topic.

    Args:
        missing_is_empty: a missing topic counts as empty (a stream may wait for it), else it is an error.

    Raises: NoSuchTopic, OptionError, DataLoss when a given id is gone.
    """
    found = {}
    for topic in options.topics.select(logs.topics):
        first_id, next_id = _bounds(logs, topic, missing_is_empty)
        place = options.start.of(topic)
        if options.start.kind == "time":
            found[topic] = start = next_id if first_id == next_id else logs.id_at_time(topic, place)
            if start == next_id and options.late_start_is_error:
                raise OptionError(
                    f"topic {topic} has no record at or after {place} ms; "
                    "startingOffsetsByTimestampStrategy=latest starts at its end"
                )
            continue
        if place >= 0:
            check_start(options, topic, place, first_id, next_id)
        found[topic] = first_id if place == EARLIEST else next_id if place == LATEST else min(max(place, first_id), next_id)
    _refuse_unread(options.start, found)
    return found


def ending(options: SourceOptions, logs: Logs, start: Offsets) -> Offsets:
    """End of a batch by topic, at least its start. Raises: NoSuchTopic, OptionError."""
    found = {}
    for topic, begin in start.items():
        _, next_id = logs.bounds(topic)
        place = options.end.of(topic)
        if options.end.kind == "time":
            end = logs.id_at_time(topic, place)
        elif place == LATEST:
            end = next_id
        elif place > next_id:
            raise OptionError(f"option endingOffsets: topic {topic} ends at {next_id}, before {place}")
        else:
            end = place
        found[topic] = max(begin, end)
    _refuse_unread(options.end, found)
    return found


def latest(options: SourceOptions, logs: Logs) -> Offsets:
    """Current ends of existing topics."""
    return {topic: _bounds(logs, topic, missing_is_empty=True)[1] for topic in options.topics.select(logs.topics)}


def deleted(options: SourceOptions, logs: Logs, known: Iterable[str]) -> Offsets:
    """Deleted topics of a stream with a pattern; they end at 0, like missing topics given by name."""
    if options.topics.pattern is None:
        return {}
    present = set(logs.topics())
    return {topic: 0 for topic in known if topic not in present}


def share(start: Mapping[str, int], end: Mapping[str, int], limit: int | None) -> Offsets:
    """Ends of a batch of about ``limit`` records, shared by backlog; each topic with a backlog gets some.

    A topic that is not in ``start`` is new and read from 0; one that is not in ``end`` stays where it is.
    """
    backlog = {topic: max(next_id - start.get(topic, 0), 0) for topic, next_id in end.items()}
    total = sum(backlog.values())
    reached = dict(start)
    for topic, waiting in backlog.items():
        # Rounded parts may exceed the limit by one each, as with Kafka.
        part = waiting if limit is None or total <= limit else max(limit * waiting // total, 1) if waiting else 0
        begin = start.get(topic, 0)
        reached[topic] = begin + part if end[topic] >= begin else end[topic]
    return reached


def cut(options: SourceOptions, start: Mapping[str, int], end: Mapping[str, int]) -> list[IdSpan]:
    """Ranges of about equal size for tasks. Deterministic: a repeated batch is cut in the same way."""
    total = sum(max(end[topic] - start.get(topic, 0), 0) for topic in end)
    spans = []
    for topic in sorted(end):
        begin, stop = start.get(topic, 0), end[topic]
        size = stop - begin
        if size <= 0:
            continue
        parts = -(-size // options.max_records_per_partition)
        if options.min_partitions is not None:
            parts = max(parts, -(-size * options.min_partitions // total))
        parts = min(parts, size)
        edges = [begin + size * part // parts for part in range(parts + 1)]
        spans += [IdSpan(topic, a, b) for a, b in itertools.pairwise(edges)]
    return spans


def retained(options: SourceOptions, logs: Logs, start: Offsets, end: Offsets) -> Offsets:
    """Actual start of a stream's batch, after retention, or after a topic was recreated.

    Raises: DataLoss with ``failOnDataLoss``; without it the loss is a warning.
    """
    found = dict(start)
    for topic, stop in end.items():
        begin = start.get(topic, 0)
        if stop == begin:
            continue
        first_id, next_id = _bounds(logs, topic, missing_is_empty=True)
        if stop > next_id:
            lost(options, topic, max(begin, next_id), stop - 1, f"the topic ends at {next_id}; was it deleted and recreated?")
            found[topic] = stop
        elif begin > stop:
            lost(options, topic, begin, None, "the topic was deleted" + (" and recreated" if next_id else ""))
            found[topic] = min(first_id, stop)
        elif begin < first_id and topic in start:
            lost(options, topic, begin, min(first_id, stop) - 1, f"retention removed the records below {first_id}")
            found[topic] = min(first_id, stop)
        elif begin < first_id:
            found[topic] = min(first_id, stop)  # a new topic starts at its first id
    return found


def check_start(options: SourceOptions, topic: str, start: int, first_id: int, next_id: int) -> None:
    """Raises: DataLoss, OptionError."""
    if start < first_id:
        lost(options, topic, start, first_id - 1, f"retention removed the records below {first_id}")
    elif start > next_id:
        raise OptionError(f"option startingOffsets: topic {topic} ends at {next_id}, before {start}")


def lost(options: SourceOptions, topic: str, first_id: int, last_id: int | None, why: str) -> None:
    """Report lost ids. Raises: DataLoss with ``failOnDataLoss``."""
    loss = DataLoss(topic, first_id, last_id, why)
    if options.fail_on_data_loss:
        raise DataLoss(topic, first_id, last_id, f"{why} (failOnDataLoss=false continues)")
    logger.warning("%s; continuing, with failOnDataLoss=false", loss)


def _bounds(logs: Logs, topic: str, missing_is_empty: bool) -> tuple[int, int]:
    try:
        return logs.bounds(topic)
    except NoSuchTopic:
        if missing_is_empty:
            return 0, 0
        raise


def _refuse_unread(edge: Edge, found: Offsets) -> None:
    unread = set(edge.by_topic or ()) - set(found)
    if unread:
        raise OptionError(f"the given offsets name topic {min(unread)}, which is not read: leave it out")
