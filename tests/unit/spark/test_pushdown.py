"""Which filters become id ranges, and which remain for Spark to check."""

from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, IsNotNull, LessThan, LessThanOrEqual

from toymq_spark.pushdown import Bounds
from toymq_spark.record_sources import AT_MS_MAX

AT = datetime(2026, 1, 2, tzinfo=UTC)
AT_MS = int(AT.timestamp() * 1000)


def narrowed(*filters: Filter, **topics: int) -> dict[str, tuple[int, int]]:
    """Return the ids of topics after the filters; each topic begins at 0, with a record every millisecond from ``AT`` on."""
    bounds = Bounds()
    list(bounds.take(filters))
    start, end = bounds.narrow(
        dict.fromkeys(topics, 0), topics, lambda topic, at_ms: min(max(at_ms - AT_MS, 0), topics[topic])
    )
    return {topic: (start[topic], end[topic]) for topic in start}


@pytest.mark.parametrize(
    ("filters", "ids"),
    [
        ([], (0, 100)),
        ([EqualTo(("offset",), 7)], (7, 8)),
        ([GreaterThan(("offset",), 7), LessThan(("offset",), 20)], (8, 20)),
        ([GreaterThanOrEqual(("offset",), 7), LessThanOrEqual(("offset",), 20)], (7, 21)),
        ([GreaterThan(("offset",), 500)], (501, 501)),
        ([LessThan(("offset",), -5)], (0, 0)),
        ([EqualTo(("offset",), 7), EqualTo(("offset",), 8)], (8, 8)),
        ([GreaterThanOrEqual(("timestamp",), AT + timedelta(milliseconds=10))], (10, 100)),
        ([LessThan(("timestamp",), AT + timedelta(milliseconds=10))], (0, 11)),
        ([LessThan(("timestamp",), AT - timedelta(days=1))], (0, 0)),
    ],
)
def test_conditions_become_a_range(filters: list[Filter], ids: tuple[int, int]) -> None:
    assert narrowed(*filters, t=100) == {"t": ids}


def test_topics_are_those_that_every_condition_names() -> None:
    assert narrowed(In(("topic",), ("a", "b")), EqualTo(("topic",), "b"), a=1, b=2, c=3) == {"b": (0, 2)}
    assert narrowed(In(("topic",), ("a",)), In(("topic",), ("b",)), a=1, b=2) == {}


def test_spark_checks_times_again_and_what_the_log_does_not_know() -> None:
    times = [GreaterThan(("timestamp",), AT), LessThanOrEqual(("timestamp",), AT)]
    unknown = [EqualTo(("key",), b"k"), IsNotNull(("key",)), EqualTo(("offset",), "7"), In(("topic",), ("a", None))]
    taken = [EqualTo(("topic",), "a"), EqualTo(("offset",), 7), IsNotNull(("value",)), IsNotNull(("topic",))]
    assert list(Bounds().take([*times, *unknown, *taken])) == [*times, *unknown]


@pytest.mark.parametrize(
    ("at", "low_ms", "high_ms"),
    [
        (datetime.min, 0, 0),  # noqa: DTZ901 (Spark's have no zone)
        (datetime.max, AT_MS_MAX, 253402300800000),  # noqa: DTZ901
        (AT - timedelta(days=365 * 100), 0, 0),
    ],
)
def test_times_at_the_ends_of_the_calendar(at: datetime, low_ms: int, high_ms: int) -> None:
    bounds = Bounds()
    list(bounds.take([GreaterThan(("timestamp",), at)]))
    assert bounds.start_ms is not None
    assert low_ms <= bounds.start_ms <= high_ms
