"""Which ids a batch reads: where it begins and ends, how a limit is shared, how ranges are cut for tasks, and what is lost.

Knows nothing of Spark. An id range is [start, end): ``end`` is the first id that does not belong to it. Spark keeps offsets as
JSON and compares them as strings, so the form is fixed: ``{"topic": {"0": id}}``, topics sorted.
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
"""Topic to next id to read."""


@dataclass(frozen=True, slots=True)
class IdSpan:
    """Ids of one topic that one task reads, ``end`` excluded."""

    topic: str
    start: int
    end: int


def to_json(offsets: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """The form that Spark keeps."""
    return {topic: {"0": offsets[topic]} for topic in sorted(offsets)}


def from_json(found: Mapping[str, Any]) -> Offsets:
    """Raises: OptionError when a checkpoint holds something else."""
    try:
        return {topic: int(partitions["0"]) for topic, partitions in found.items()}
    except (KeyError, TypeError, ValueError):
        raise OptionError(f"the checkpoint holds offsets of another form: {str(found)[:200]}") from None


def starting(options: SourceOptions, logs: Logs, *, missing_is_empty: bool) -> Offsets:
    """First id to read, by topic.

    Args:
        missing_is_empty: what a topic is that does not exist: empty (a stream may wait for it), or an error.

    Raises: NoSuchTopic, OptionError, DataLoss when a given id is no longer there.
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
                    "startingOffsetsByTimestampStrategy=latest would begin at its end"
                )
            continue
        if place >= 0:
            check_start(options, topic, place, first_id, next_id)
        found[topic] = first_id if place == EARLIEST else next_id if place == LATEST else min(max(place, first_id), next_id)
    _refuse_strangers(options.start, found)
    return found


def ending(options: SourceOptions, logs: Logs, start: Offsets) -> Offsets:
    """End of a batch, by topic; never before its beginning. Raises: NoSuchTopic, OptionError."""
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
    _refuse_strangers(options.end, found)
    return found


def latest(options: SourceOptions, logs: Logs) -> Offsets:
    """The present ends of the topics that are there."""
    return {topic: _bounds(logs, topic, missing_is_empty=True)[1] for topic in options.topics.select(logs.topics)}


def deleted(options: SourceOptions, logs: Logs, known: Iterable[str]) -> Offsets:
    """Of the topics that a stream reads by a pattern, those that are no more. They end at 0, as one that was given by name."""
    if options.topics.pattern is None:
        return {}
    present = set(logs.topics())
    return {topic: 0 for topic in known if topic not in present}


def share(start: Mapping[str, int], end: Mapping[str, int], limit: int | None) -> Offsets:
    """The ends of a batch of at most about ``limit`` records, split by backlog; no topic with a backlog gets nothing.

    A topic that ``start`` does not know is new and read from 0; one that ``end`` does not know stays where it is.
    """
    backlog = {topic: max(next_id - start.get(topic, 0), 0) for topic, next_id in end.items()}
    total = sum(backlog.values())
    reached = dict(start)
    for topic, waiting in backlog.items():
        # Two rounded parts of a limit of 10 may be 11; with Kafka they are, too.
        part = waiting if limit is None or total <= limit else max(limit * waiting // total, 1) if waiting else 0
        begin = start.get(topic, 0)
        reached[topic] = begin + part if end[topic] >= begin else end[topic]
    return reached


def cut(options: SourceOptions, start: Mapping[str, int], end: Mapping[str, int]) -> list[IdSpan]:
    """Ranges for tasks, about equal in size. The same for the same offsets and options, so that a batch that is run again is
    cut again as it was."""
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
    """Where a batch of a stream really begins, after retention, and after a topic was made anew.

    Raises: DataLoss with ``failOnDataLoss``; without it the loss is a warning.
    """
    found = dict(start)
    for topic, stop in end.items():
        begin = start.get(topic, 0)
        if stop == begin:
            continue
        first_id, next_id = _bounds(logs, topic, missing_is_empty=True)
        if stop > next_id:
            lost(options, topic, max(begin, next_id), stop - 1, f"the topic ends at {next_id}; was it deleted and made anew?")
            found[topic] = stop
        elif begin > stop:
            lost(options, topic, begin, None, "the topic was deleted" + (" and made anew" if next_id else ""))
            found[topic] = min(first_id, stop)
        elif begin < first_id and topic in start:
            lost(options, topic, begin, min(first_id, stop) - 1, f"retention has removed what is below {first_id}")
            found[topic] = min(first_id, stop)
        elif begin < first_id:
            found[topic] = min(first_id, stop)  # a new topic begins where it begins
    return found


def check_start(options: SourceOptions, topic: str, start: int, first_id: int, next_id: int) -> None:
    """Raises: DataLoss, OptionError."""
    if start < first_id:
        lost(options, topic, start, first_id - 1, f"retention has removed what is below {first_id}")
    elif start > next_id:
        raise OptionError(f"option startingOffsets: topic {topic} ends at {next_id}, before {start}")


def lost(options: SourceOptions, topic: str, first_id: int, last_id: int | None, why: str) -> None:
    """Raises: DataLoss with ``failOnDataLoss``."""
    loss = DataLoss(topic, first_id, last_id, why)
    if options.fail_on_data_loss:
        raise DataLoss(topic, first_id, last_id, f"{why} (failOnDataLoss=false would go on)")
    logger.warning("%s; going on, as failOnDataLoss=false says", loss)


def _bounds(logs: Logs, topic: str, missing_is_empty: bool) -> tuple[int, int]:
    try:
        return logs.bounds(topic)
    except NoSuchTopic:
        if missing_is_empty:
            return 0, 0
        raise


def _refuse_strangers(edge: Edge, found: Offsets) -> None:
    strangers = set(edge.by_topic or ()) - set(found)
    if strangers:
        raise OptionError(f"the offsets given name topic {min(strangers)}, which is not read")
