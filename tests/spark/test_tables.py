"""Archives as tables, with Spark: archived once, replayed, reported on, watched and verified, on one session."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.spark.test_jobs import digest, publish
from tests.spark.test_spark import records
from tests.support.requirements import require
from tests.support.tables import KINDS, ids
from toymq import sync
from toymq_spark.jobs import archive, replay, report, verify, watch
from toymq_spark.sink import QUERY_ID
from toymq_spark.tables.opening import open_table

pytestmark = [require("java"), pytest.mark.spark_slow]


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_is_archived_replayed_and_checked(
    kind: str, spark: SparkSession, url: str, client: sync.Client, tmp_path: Path
) -> None:
    topic = f"lake-{kind}"
    publish(client, topic, 0, 300)
    place, planned = tmp_path / "an {archive,}[of] a*", tmp_path / "checkpoint"
    (planned / "offsets").mkdir(parents=True)
    table = open_table(str(place), kind)
    rows = spark.read.format("toymq").options(url=url, subscribe=topic, includeHeaders="true", minPartitions="2").load()

    def write(number: int, start: int) -> None:
        """Write a batch as the stream does."""
        (planned / "offsets" / str(number)).touch()
        spark.sparkContext.setLocalProperty(QUERY_ID, "q")
        try:
            archive.append_batch(table, planned, rows.where(f"offset >= {start} AND offset < {start + 150}"), number)
        finally:
            spark.sparkContext.setLocalProperty(QUERY_ID, None)  # type: ignore[arg-type]

    for number, start in ((0, 0), (1, 160), (1, 160)):
        write(number, start)
    archived = [*range(150), *range(160, 300)]
    assert ids(kind, place) == archived

    sink = {"url": url, "topic": f"{topic}-again"}
    steps = list(replay.replay(spark, table, sink, tmp_path / "state", rate=200, sleep=lambda _: None))
    assert [step.rows for step in steps] == [200, 290]
    assert sorted(int(frame.payload) for frame in records(client, f"{topic}-again")) == archived

    everything = archive.records(spark, table)
    (found,) = report.report(everything, "1 day").topics
    assert (found["topic"], found["records"], found["gaps"], found["gap_ids"]) == (topic, 290, 1, 10)
    gaps = watch.gaps(everything).collect()
    assert [(row.kind, row.topic, row.first_id, row.last_id, row.detail) for row in gaps] == [
        ("gap", topic, 150, 159, "10 without a record")
    ]
    said: dict[str, Any] = {"op": "pub", "result": "ok", "topic": topic}
    ledger = tmp_path / "ledger.jsonl"
    lines = [{**said, "key": f"k{n}" if n % 2 else None, "digest": digest(b"%d" % n), "id": n} for n in range(300)]
    ledger.write_text("".join(json.dumps(line) + "\n" for line in lines))
    events = verify.ledger(spark, [str(ledger)]).cache()
    log, first_ids = verify.archived(spark, table, [topic, "none"])
    assert first_ids == {topic: 0, "none": 0}
    lost = verify.findings(events, log.cache(), first_ids).collect()
    assert sorted((row.kind, row.id) for row in lost) == [("lost", n) for n in range(150, 160)]
