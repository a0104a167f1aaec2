"""The output of ``watch``'s stateful operator, with Spark's own tester of such operators: no JVM."""

from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming.tws_tester import TwsTester

from toymq_spark.jobs.watch import TopicWatch, looks_at, runs

NAMES = (
    "topic", "first_id", "last_id", "at_ms", "consumer", "settled", "waiting", "inflight", "sessions", "paused",
)  # fmt: skip


def sight(**values: Any) -> Row:
    return Row(**{**dict.fromkeys(NAMES), "topic": "t", **values})


def ids(first_id: int, last_id: int) -> Row:
    return sight(first_id=first_id, last_id=last_id)


def look(at_s: int, settled: int, waiting: int, consumer: str | None = "c", **more: Any) -> list[Row]:
    """Return rows for the topic and one consumer of it."""
    seen = sight(at_ms=at_s * 1000)
    said = {"settled": settled, "waiting": waiting, "inflight": 0, "sessions": 1, "paused": False, **more}
    return [seen] if consumer is None else [seen, sight(at_ms=at_s * 1000, consumer=consumer, **said)]


class Told:
    def __init__(self, stuck_after_s: int = 60) -> None:
        self._tester = TwsTester(TopicWatch(stuck_after_s * 1000))

    def __call__(self, *rows: Row, topic: str = "t") -> list[tuple[Any, ...]]:
        """Process a batch for a topic. Returns: its output rows."""
        found = self._tester.test(topic, list(rows))
        return [(row.kind, row.first_id, row.last_id) if row.consumer is None else (row.kind, row.consumer) for row in found]


def test_gaps() -> None:
    told = Told()
    assert told(ids(5, 9)) == [], "it begins wherever it begins"
    assert told(ids(20, 24), ids(10, 19)) == [], "runs of a batch come in any order"
    assert told(ids(30, 30), ids(26, 28)) == [("gap", 25, 25), ("gap", 29, 29)]
    assert told(ids(31, 40)) == [], "a gap is told once"
    assert told(ids(1, 2), topic="other") == [], "each topic has its own ids"
    assert told(ids(0, 3)) == [("anew", 0, 3)]
    assert told(ids(4, 4)) == []


def test_a_consumer_that_gets_stuck_and_moves_again() -> None:
    told = Told(stuck_after_s=60)
    assert told(*look(0, settled=10, waiting=5)) == []
    assert told(*look(59, settled=10, waiting=7)) == [], "not for long enough"
    assert told(*look(60, settled=10, waiting=7)) == [("stuck", "c")]
    assert told(*look(70, settled=10, waiting=8)) == [], "told once"
    assert told(*look(75, settled=11, waiting=8)) == [("moving", "c")]
    assert told(*look(134, settled=11, waiting=8)) == []
    assert told(*look(135, settled=11, waiting=8)) == [("stuck", "c")], "and may get stuck again"


def test_a_consumer_without_work_is_not_stuck() -> None:
    told = Told(stuck_after_s=60)
    assert told(*look(0, settled=10, waiting=0)) == []
    assert told(*look(500, settled=10, waiting=0)) == []
    assert told(*look(501, settled=10, waiting=3)) == [], "it has had work for a second"
    assert told(*look(560, settled=10, waiting=3)) == [("stuck", "c")]
    assert told(*look(561, settled=10, waiting=0)) == [("moving", "c")], "its work was taken away"


def test_several_looks_in_a_batch_and_a_consumer_that_is_forgotten() -> None:
    told = Told(stuck_after_s=60)
    rows = [*look(0, settled=1, waiting=1), *look(60, settled=1, waiting=1)]
    assert told(*reversed(rows)) == [("stuck", "c")], "in the order of time, not of arrival"
    assert told(*look(61, 0, 0, consumer=None)) == []
    assert told(*look(62, settled=1, waiting=1)) == [], "one of this name that is new"


def test_what_the_finding_says() -> None:
    tester = TwsTester(TopicWatch(1000))
    tester.test("t", look(0, settled=1, waiting=4, inflight=2, sessions=3, paused=True))
    (found,) = tester.test("t", look(2, settled=1, waiting=4, inflight=2, sessions=3, paused=True))
    assert found.detail == "nothing settled for 2 s; 4 to do, 2 of them in flight, 3 sessions, paused"


def test_runs_of_ids() -> None:
    batch = pa.RecordBatch.from_pydict({"topic": ["a", "a", "a", "b", "b"], "offset": [1, 2, 4, 5, 6]})
    (found,) = runs(iter([batch]))
    assert [(row["topic"], row["first_id"], row["last_id"]) for row in found.to_pylist()] == [
        ("a", 1, 2), ("a", 4, 4), ("b", 5, 6),
    ]  # fmt: skip
    assert found.column("consumer").null_count == 3


def test_looks_are_what_the_broker_says() -> None:
    consumer = {"consumer": "c", "backlog": 7, "scheduled": 2, "inflight": 1, "sessions": 3, "paused": False}
    described = [{"topic": "t", "next_id": 100, "consumers": [consumer]}, {"topic": "u", "next_id": 0, "consumers": []}]
    assert list(looks_at(described, 12)) == [
        {"topic": "t", "at_ms": 12},
        {
            "topic": "t", "at_ms": 12, "consumer": "c", "settled": 91, "waiting": 7, "inflight": 1, "sessions": 3,
            "paused": False,
        },
        {"topic": "u", "at_ms": 12},
    ]  # fmt: skip
