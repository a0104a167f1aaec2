"""Computes the id range of each batch: its start and end, shares of a limit, ranges of tasks, and lost ids.

Does not know Spark. An id range is [start, end). Spark stores offsets as JSON and compares them as strings, so their form is
fixed: ``{"topic": {"0": id, "bucket": id, "incarnation": word}}``, topics sorted, ``incarnation`` only if it is known (ADR
0135). A batch that ends here reads the ids below ``bucket`` in a bucket; without ``bucket`` it reads no ids there (ADR 0167). A
topic with partitions has ``{"topic": {"0": id, "1": id, "bucket": {"0": id}, "incarnation": {"0": word, "1": word}}}``.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from toymq_py.errors import NoSuchTopic
from toymq_py.records import IdRange
from toymq_spark.errors import DataLoss, OptionError
from toymq_spark.options import EARLIEST, LATEST, Edge, SourceOptions
from toymq_spark.partitions import SINGLE, by_name, topics_of
from toymq_spark.record_sources import Logs
from toymq_spark.spans import count_of, nth

logger = logging.getLogger("toymq_spark")

Offsets = dict[str, int]
"""Next id to read by topic."""

WORDS = ("bucket", "incarnation", "removed")
"""What stored offsets say of a topic beside its offsets."""
_ANEW = ". If another program wrote it, begin with a new checkpoint; else restore it from a copy"
NONE: Mapping[str, int] = MappingProxyType({})
Incarnations = dict[str, str]
"""Incarnation by topic, where it is known."""


def to_json(
    offsets: Mapping[str, int], incarnations: Mapping[str, str], in_bucket: Mapping[str, int] = NONE,
    removed: Mapping[str, int] = NONE,
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Convert offsets to the JSON that Spark stores. ``removed``: only for Spark's report: how many ids before each offset have
    no record."""
    shown = {}
    for name, topics in by_name(offsets).items():
        entry: dict[str, Any] = {key: offsets[topic] for key, topic in topics.items()}
        for word, values in (("bucket", in_bucket), ("incarnation", incarnations), ("removed", removed)):
            known = {key: values[topic] for key, topic in topics.items() if topic in values}
            if known:
                entry[word] = known[SINGLE] if topics == {SINGLE: name} else known
        shown[name] = entry
    return shown


def _said(found: Mapping[str, Any], word: str | None = None) -> dict[str, Any]:
    """Read the offsets, or the values of ``word`` ("bucket", say), by topic, from what ``to_json`` made. Raises:
    OptionError."""
    values: dict[str, Any] = {}
    for name, entry in found.items():
        try:
            topics = topics_of(name, [key for key in entry if key not in WORDS])
            said = entry if word is None else entry.get(word, {})
            if word is not None and word in entry and topics == {SINGLE: name}:
                said = {SINGLE: said}
            values |= {topics[key]: value for key, value in said.items() if key in topics}
        except (AttributeError, TypeError, ValueError):
            topics = {}
        if not topics:
            raise OptionError(f"invalid offsets in the checkpoint: {str(found)[:200]}{_ANEW}")
    return values


def _numbers(found: Mapping[str, Any], word: str | None = None) -> Offsets:
    try:
        return {topic: int(number) for topic, number in _said(found, word).items()}
    except (TypeError, ValueError):
        raise OptionError(f"invalid offsets in the checkpoint: {str(found)[:200]}{_ANEW}") from None


def in_bucket_of(found: Mapping[str, Any]) -> Offsets:
    """Return, from stored offsets, the end of the ids that are read in a bucket, by topic. Raises: OptionError for an invalid
    checkpoint."""
    return _numbers(found, "bucket")


def removed_of(found: Mapping[str, Any]) -> Offsets:
    """Return, from the offsets in Spark's report, how many ids before each offset have no record, by topic. Raises:
    OptionError."""
    return _numbers(found, "removed")


def incarnations_of(found: Mapping[str, Any]) -> Incarnations:
    """Return the incarnations in stored offsets, by topic."""
    return {topic: str(word) for topic, word in _said(found, "incarnation").items()}


def from_json(found: Mapping[str, Any]) -> Offsets:
    """Return the ids in stored offsets, by topic. Raises: OptionError for an invalid checkpoint."""
    return _numbers(found)


def selected(options: SourceOptions, logs: Logs) -> list[str]:
    """Return the topics to read, sorted; a partitioned topic is replaced by its partitions."""
    names = options.topics.select(logs.topics)
    if options.topics.pattern is not None or options.topics.exact:
        return names
    return [part for name in names for part in logs.partitions(name)]


def starting(options: SourceOptions, logs: Logs, *, missing_is_empty: bool, seen: Incarnations | None = None) -> Offsets:
    """Return the first id to read, by topic.

    Args:
        seen: filled with the incarnations of the topics.
        missing_is_empty: whether a missing topic counts as empty (a stream may wait for it), and is no error.

    Raises: NoSuchTopic, OptionError, DataLoss when a given id is gone.
    """
    found = {}
    for topic in selected(options, logs):
        first_id, next_id = _bounds(logs, topic, missing_is_empty, seen)
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
    """Return the end of a batch by topic, which is at least its start. Raises: NoSuchTopic, OptionError."""
    found = {}
    for topic, begin in start.items():
        next_id = logs.bounds(topic).next_id
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


def latest(options: SourceOptions, logs: Logs, seen: Incarnations | None = None) -> Offsets:
    """Return the current ends of the existing topics, and fill ``seen`` with their incarnations."""
    return {topic: _bounds(logs, topic, missing_is_empty=True, seen=seen)[1] for topic in selected(options, logs)}


def made_anew(known: Mapping[str, str], present: Mapping[str, str]) -> set[str]:
    """Return the topics whose incarnation has changed: they were deleted and created again."""
    return {topic for topic, incarnation in present.items() if known.get(topic, incarnation) != incarnation}


def deleted(options: SourceOptions, logs: Logs, known: Iterable[str]) -> Offsets:
    """Return the deleted topics of a stream with a pattern; their offset is 0, like that of missing topics given by name."""
    if options.topics.pattern is None:
        return {}
    present = set(logs.topics())
    return {topic: 0 for topic in known if topic not in present}


def share(
    start: Mapping[str, int],
    end: Mapping[str, int],
    limit: int | None,
    removed: Callable[[str], Sequence[IdRange]] = lambda topic: (),
) -> Offsets:
    """Return the ends of a batch of about ``limit`` records. Topics share the limit in proportion to their backlogs, and each
    with a backlog gets at least one record.

    A topic that is not in ``start`` is new and read from id 0; one that is not in ``end`` keeps its offset.

    Args:
        removed: returns the ids of a topic that have no record; they do not count for the limit. Called only when the limit
            matters.
    """
    waiting_ids = {topic: next_id - start.get(topic, 0) for topic, next_id in end.items() if next_id > start.get(topic, 0)}
    is_limited = limit is not None and sum(waiting_ids.values()) > limit
    gaps = {topic: removed(topic) for topic in waiting_ids} if is_limited else {}
    backlog = {topic: count_of(start.get(topic, 0), next_id, gaps.get(topic, ())) for topic, next_id in end.items()}
    total = sum(backlog.values())
    reached = dict(start)
    for topic, waiting in backlog.items():
        # Rounded parts may exceed the limit by one each, as with Kafka.
        part = waiting if limit is None or total <= limit else max(limit * waiting // total, 1) if waiting else 0
        begin = start.get(topic, 0)
        reached[topic] = nth(begin, end[topic], gaps.get(topic, ()), part)
    return reached


def retained(
    options: SourceOptions, logs: Logs, start: Offsets, end: Offsets, known: Incarnations, planned: Incarnations
) -> Offsets:
    """Return the start from which a stream's batch can really be read, which is higher after retention, or another one after a
    topic was recreated.

    Args:
        known, planned: the incarnations to which ``start`` and ``end`` belong.

    Raises: DataLoss with ``failOnDataLoss``; without it the loss is a warning.
    """
    found = dict(start)
    for topic, stop in end.items():
        begin = start.get(topic, 0)
        old, new = known.get(topic), planned.get(topic)
        changed = old is not None and new is not None and old != new
        if stop == begin and not changed:
            continue
        present: Incarnations = {}
        first_id, next_id = _bounds(logs, topic, missing_is_empty=True, seen=present)
        now = present.get(topic)
        if new is not None and now is not None and now != new:
            if old not in (None, new):  # of a first batch Spark asks anew for its start
                if old != now:
                    lost(options, topic, begin, None, _anew(old, new))
                begin = 0
            if stop > begin:
                lost(options, topic, begin, stop - 1, _anew(new, now))
            found[topic] = stop
        elif changed:
            lost(options, topic, begin, None, _anew(old, new))
            found[topic] = min(first_id, stop)
        elif stop > next_id:
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


def _anew(old: object, new: object) -> str:
    return (
        f"the topic was deleted and made anew, its incarnation was {old} and is {new}; to go on at the first id of the new "
        "one, start once with failOnDataLoss=false, or with another checkpoint and startingOffsets=earliest"
    )


def check_start(options: SourceOptions, topic: str, start: int, first_id: int, next_id: int) -> None:
    """Check that a given start is within the retained ids of a topic. Raises: DataLoss, OptionError."""
    if start < first_id:
        lost(options, topic, start, first_id - 1, f"retention removed the records below {first_id}")
    elif start > next_id:
        raise OptionError(f"option startingOffsets: topic {topic} ends at {next_id}, before {start}")


def lost(options: SourceOptions, topic: str, first_id: int, last_id: int | None, why: str) -> None:
    """Report that ids are lost: log a warning, or with ``failOnDataLoss`` raise. Raises: DataLoss."""
    loss = DataLoss(topic, first_id, last_id, why)
    if options.fail_on_data_loss:
        raise DataLoss(topic, first_id, last_id, f"{why} (failOnDataLoss=false continues)")
    logger.warning("%s; continuing, with failOnDataLoss=false", loss)


def _bounds(logs: Logs, topic: str, missing_is_empty: bool, seen: Incarnations | None = None) -> tuple[int, int]:
    try:
        found = logs.bounds(topic)
    except NoSuchTopic:
        if missing_is_empty:
            return 0, 0
        raise
    if seen is not None and found.incarnation is not None:
        seen[topic] = found.incarnation
    return found.first_id, found.next_id


def _refuse_unread(edge: Edge, found: Offsets) -> None:
    unread = set(edge.by_topic or ()) - set(found) - {topic.removesuffix("#0") for topic in found}
    if unread:
        raise OptionError(f"the given offsets name topic {min(unread)}, which is not read: leave it out")
