"""The job ``watch``: reports gaps and stuck consumers of topics as they appear.

A stateful operator (``transformWithState``), keyed by topic, gets two streams: ranges of ids that the source has read, and once
a second the broker's description of consumers. A finding is reported once, when it begins:

    gap      ids without a record: damage, or retention that overtook this job
    anew     the topic was deleted and recreated: its ids begin again
    stuck    a consumer has a backlog, and has settled nothing for a while
    moving   a stuck consumer settles again

``next_id - backlog - scheduled`` is what a consumer has settled; it rises in whatever order its acks come.
"""

import time
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import groupby
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle, TimerValues
from pyspark.sql.window import Window

from toymq_spark.options import BrokerAddress, Topics, parse_source
from toymq_spark.record_sources import BrokerLogs
from toymq_spark.session import apart

STUCK_AFTER_MS = 60_000
SET = {"failOnDataLoss": "false"}
"""Options of the source that this job sets: it reports missing records and goes on."""
SETTINGS = {
    # transformWithState needs this store.
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "spark.sql.shuffle.partitions": "1",  # few rows: Spark's default of 200 stores would be 200 tasks a batch
}
SIGHT = (
    "topic string, first_id bigint, last_id bigint, "
    "at_ms bigint, consumer string, settled bigint, waiting bigint, inflight bigint, sessions int, paused boolean"
)
"""A run of ids, or a sample of one consumer; null in a sample of a topic without consumers."""
FINDING = "topic string, kind string, consumer string, first_id bigint, last_id bigint, detail string"
_ARROW = pa.schema(
    [
        ("topic", pa.string()), ("first_id", pa.int64()), ("last_id", pa.int64()), ("at_ms", pa.int64()),
        ("consumer", pa.string()), ("settled", pa.int64()), ("waiting", pa.int64()), ("inflight", pa.int64()),
        ("sessions", pa.int32()), ("paused", pa.bool_()),
    ]
)  # fmt: skip


def findings(
    spark: SparkSession, source: Mapping[str, str], *, stuck_after_ms: int = STUCK_AFTER_MS, once: bool = False
) -> DataFrame:
    """Return a stream of findings with the schema ``FINDING``, for output mode "append".

    Args:
        source: options of ``format("toymq")``. A directory (``path``) has no consumers.
        stuck_after_ms: time after which a consumer that settles nothing is stuck.
        once: for a trigger that ends, such as availableNow: reports gaps only, since one sample does not show that a consumer
            is stuck.

    Raises: ConfigError.
    """
    parsed = parse_source(source, "stream")
    own = apart(spark, SETTINGS)
    options = {**source, **SET, "partitions": "topics"}
    records = own.readStream.format("toymq").schema("topic string, offset bigint").options(**options).load()
    sights = records.mapInArrow(runs, SIGHT)
    if isinstance(parsed.place, BrokerAddress) and not once:
        ticks = own.readStream.format("rate").options(rowsPerSecond=1, numPartitions=1).load()
        sights = sights.union(ticks.mapInArrow(partial(_looks, parsed.place, parsed.topics), SIGHT))
    return sights.groupBy("topic").transformWithState(TopicWatch(stuck_after_ms), FINDING, "Append", "None")


def gaps(records: DataFrame) -> DataFrame:
    """Return the gaps in the ids of an archive, with the schema ``FINDING``.

    Args:
        records: with the columns ``topic`` and ``offset``, at least.
    """
    before = F.lag("offset").over(Window.partitionBy("topic").orderBy("offset"))
    missing = records.select("topic", "offset", (before + 1).alias("first_id")).where("offset > first_id")
    return missing.selectExpr(
        "topic", "'gap' AS kind", "CAST(NULL AS string) AS consumer", "first_id", "offset - 1 AS last_id",
        "concat(offset - first_id, ' without a record') AS detail",
    ).orderBy("topic", "first_id")  # fmt: skip


def runs(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Convert rows of ``topic, offset`` to ranges of consecutive ids."""
    for batch in batches:
        found: list[dict[str, Any]] = []
        for topic, msg_id in zip(batch.column("topic").to_pylist(), batch.column("offset").to_pylist(), strict=True):
            last = found[-1] if found else None
            if last is not None and last["topic"] == topic and last["last_id"] + 1 == msg_id:
                last["last_id"] = msg_id
            else:
                found.append({"topic": topic, "first_id": msg_id, "last_id": msg_id})
        yield pa.RecordBatch.from_pylist(found, _ARROW)


def looks_at(described: list[dict[str, Any]], at_ms: int) -> Iterator[dict[str, Any]]:
    """Convert a broker's STATS (protocol.md, "JSON shapes") to rows of the schema ``SIGHT``: one for each topic and each
    consumer."""
    for topic in described:
        seen = {"topic": topic["topic"], "at_ms": at_ms}
        yield seen
        for consumer in topic["consumers"]:
            yield {
                **seen, "consumer": consumer["consumer"], "settled": topic["next_id"] - _unacked(consumer),
                "waiting": consumer["backlog"], "inflight": consumer["inflight"],
                "sessions": consumer["sessions"], "paused": consumer["paused"],
            }  # fmt: skip


def _unacked(consumer: Mapping[str, Any]) -> int:
    return int(consumer["backlog"] + consumer["scheduled"])


def _looks(place: BrokerAddress, topics: Topics, ticks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Describe the broker's consumers once for all ticks in a batch; nothing without a tick."""
    if sum(tick.num_rows for tick in ticks) == 0:
        return
    logs = BrokerLogs(place)
    try:
        described = logs.described()
    finally:
        logs.close()
    chosen = set(topics.select(lambda: [topic["topic"] for topic in described]))
    now_ms = time.time_ns() // 1_000_000  # noqa: TID251 (a job has no Clock)
    looks = list(looks_at([topic for topic in described if topic["topic"] in chosen], now_ms))
    yield pa.RecordBatch.from_pylist(looks, _ARROW)


class TopicWatch(StatefulProcessor):
    """The operator for one topic. Its state: the next expected id, and for each consumer how many messages it had settled,
    since when, and whether it was reported."""

    def __init__(self, stuck_after_ms: int) -> None:
        self._stuck_after_ms = stuck_after_ms

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._next_id = handle.getValueState("next_id", "next_id bigint")
        self._consumers = handle.getMapState("consumers", "consumer string", "settled bigint, since_ms bigint, told boolean")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:
        (topic,) = key
        sights = list(rows)
        yield from self._ids(topic, sorted((row.first_id, row.last_id) for row in sights if row.first_id is not None))
        looks = sorted((row for row in sights if row.at_ms is not None), key=lambda row: row.at_ms)
        for at_ms, together in groupby(looks, lambda row: row.at_ms):
            yield from self._look(topic, at_ms, [row for row in together if row.consumer is not None])

    def _ids(self, topic: str, found: list[tuple[int, int]]) -> Iterator[Row]:
        known = self._next_id.get() if self._next_id.exists() else None
        next_id = None if known is None else known[0]
        for first_id, last_id in found:
            if next_id is not None and first_id > next_id:
                yield _finding(topic, "gap", f"{first_id - next_id} without a record", ids=(next_id, first_id - 1))
            elif next_id is not None and first_id < next_id:
                yield _finding(topic, "anew", f"was at {next_id}, begins again at {first_id}", ids=(first_id, last_id))
            next_id = last_id + 1
        if found:
            self._next_id.update((next_id,))

    def _look(self, topic: str, at_ms: int, consumers: list[Row]) -> Iterator[Row]:
        known = {name: value for (name,), value in self._consumers.iterator()}
        for name in known.keys() - {row.consumer for row in consumers}:
            self._consumers.removeKey((name,))
        for row in consumers:
            settled, since_ms, told = known.get(row.consumer) or (row.settled, at_ms, False)
            if row.settled != settled or row.waiting <= 0:
                if told:
                    yield _finding(topic, "moving", f"again after {(at_ms - since_ms) / 1000:g} s", row.consumer)
                since_ms, told = at_ms, False
            elif not told and at_ms - since_ms >= self._stuck_after_ms:
                told = True
                yield _finding(topic, "stuck", _what_it_has(row, at_ms - since_ms), row.consumer)
            self._consumers.updateValue((row.consumer,), (row.settled, since_ms, told))


def _what_it_has(row: Row, for_ms: int) -> str:
    paused = ", paused" if row.paused else ""
    has = f"{row.waiting} to do, {row.inflight} of them in flight, {row.sessions} sessions{paused}"
    return f"nothing settled for {for_ms / 1000:g} s; {has}"


def _finding(
    topic: str, kind: str, detail: str, consumer: str | None = None, ids: tuple[int | None, int | None] = (None, None)
) -> Row:
    return Row(topic=topic, kind=kind, consumer=consumer, first_id=ids[0], last_id=ids[1], detail=detail)
