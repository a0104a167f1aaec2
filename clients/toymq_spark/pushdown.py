"""Filter pushdown: conditions on topic, offset and timestamp become id ranges.

Conditions on ``offset`` and ``topic`` are handled here completely. A condition on ``timestamp`` narrows the range with a
precision of milliseconds, and Spark checks it again. Conditions on ``key`` are left to Spark: a log has no index of keys.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, IsNotNull, LessThan, LessThanOrEqual

from toymq_spark.offsets import Offsets
from toymq_spark.record_sources import AT_MS_MAX

_EPOCH = datetime.fromtimestamp(0, UTC)


class Bounds:
    """Lower and upper bounds of ids and of times in milliseconds, all of which hold; upper bounds are exclusive."""

    def __init__(self) -> None:
        self.topics: set[str] | None = None
        self.start = 0
        self.end: int | None = None
        self.start_ms: int | None = None
        self.end_ms: int | None = None

    def take(self, filters: Sequence[Filter]) -> Iterator[Filter]:
        """Add the bounds that filters imply. Yields: the filters that Spark still has to check."""
        for one in filters:
            match one:
                case EqualTo(("topic",), str(topic)):
                    self._only({topic})
                case In(("topic",), values) if all(isinstance(value, str) for value in values):
                    self._only(set(values))
                case EqualTo(("offset",), int(msg_id)):
                    self._ids(msg_id, msg_id + 1)
                case GreaterThan(("offset",), int(msg_id)):
                    self._ids(msg_id + 1, None)
                case GreaterThanOrEqual(("offset",), int(msg_id)):
                    self._ids(msg_id, None)
                case LessThan(("offset",), int(msg_id)):
                    self._ids(0, msg_id)
                case LessThanOrEqual(("offset",), int(msg_id)):
                    self._ids(0, msg_id + 1)
                case GreaterThan(("timestamp",), at) | GreaterThanOrEqual(("timestamp",), at) if isinstance(at, datetime):
                    self.start_ms = max(self.start_ms or 0, _ms(at))
                    yield one
                case LessThan(("timestamp",), at) | LessThanOrEqual(("timestamp",), at) if isinstance(at, datetime):
                    end_ms = _ms(at) + 1
                    self.end_ms = end_ms if self.end_ms is None else min(self.end_ms, end_ms)
                    yield one
                case IsNotNull(("topic" | "offset" | "timestamp" | "value" | "partition" | "timestampType",)):
                    pass  # always true
                case _:
                    yield one

    def narrow(self, start: Offsets, end: Offsets, id_at_time: Callable[[str, int], int]) -> tuple[Offsets, Offsets]:
        """Narrow id ranges to the bounds; some may become empty."""
        begins, ends = {}, {}
        for topic, begin in start.items():
            if self.topics is not None and topic not in self.topics:
                continue
            stop = end[topic] if self.end is None else min(end[topic], self.end)
            begin = max(begin, self.start)
            if self.start_ms is not None and begin < stop:
                begin = max(begin, id_at_time(topic, self.start_ms))
            if self.end_ms is not None and begin < stop:
                stop = min(stop, id_at_time(topic, self.end_ms))
            begins[topic], ends[topic] = begin, max(begin, stop)
        return begins, ends

    def _only(self, topics: set[str]) -> None:
        self.topics = topics if self.topics is None else self.topics & topics

    def _ids(self, start: int, end: int | None) -> None:
        self.start = max(self.start, start)
        if end is not None:
            self.end = max(end, 0) if self.end is None else min(self.end, max(end, 0))


def _ms(at: datetime) -> int:
    """Whole milliseconds since the epoch, rounded down; 0 before it. Spark's datetimes without a zone are local."""
    try:
        return max((at.astimezone(UTC) - _EPOCH) // timedelta(milliseconds=1), 0)
    except (OverflowError, ValueError):  # within a day of the first or the last that Python knows
        return 0 if at.year == 1 else AT_MS_MAX
