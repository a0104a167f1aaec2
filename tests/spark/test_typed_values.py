"""Typed values within Spark: through source, sink, an archive and its report. The rest is in tests/unit/spark/values."""

from pathlib import Path

from pyspark.sql import SparkSession

from tests.spark.conftest import WAIT_S
from tests.support.requirements import require
from toymq import sync
from toymq_spark.jobs import archive, report
from toymq_spark.manifest import Archive

pytestmark = require("java")

DDL = "id BIGINT, price DECIMAL(10, 2), day DATE, tags ARRAY<STRING>"
TYPED = {"valueFormat": "json", "valueSchema": DDL}


def test_json_from_a_sink_to_a_source_an_archive_and_a_report(
    spark: SparkSession, url: str, client: sync.Client, tmp_path: Path
) -> None:
    rows = spark.range(20).selectExpr(
        "named_struct('id', id, 'price', CAST(id / 4 AS DECIMAL(10, 2)), 'day', DATE'2026-11-28', 'tags', array('a')) AS value",
        "CAST(id AS STRING) AS key",
    )
    rows.write.format("toymq").mode("append").options(url=url, topic="typed", valueFormat="json").save()
    client.pub("typed", b"not json")
    options = {"url": url, "subscribe": "typed", "badRows": "deadletter", **TYPED}
    found = spark.read.format("toymq").options(**options).load()
    assert found.schema["value"].dataType.simpleString() == "struct<id:bigint,price:decimal(10,2),day:date,tags:array<string>>"
    assert found.where("value.price >= 2 AND value.day = '2026-11-28'").selectExpr("SUM(value.id)").first() == (162,)

    query = archive.start(spark, options, tmp_path / "to", once=True)
    assert query.awaitTermination(WAIT_S)
    assert query.exception() is None
    archived = archive.read(spark, tmp_path / "to")
    assert archived.selectExpr("SUM(value.price)", "COUNT(*)").first() == (47.5, 20)
    values = Archive(tmp_path / "to").dataset().to_table().column("value").to_pylist()
    assert sorted(value["id"] for value in values) == list(range(20))
    (row,) = report.report(archived, "1 hour", tmp_path / "to").topics
    assert (row["records"], row["largest"]) == (20, len('{"id":10,"price":2.50,"day":"2026-11-28","tags":["a"]}'))
    bad = spark.read.format("toymq").options(url=url, subscribe="typed.bad", includeHeaders="true").load()
    assert [(one["reason"], one["count"]) for one in report.report(bad, "1 hour").reasons] == [("value is not json", 1)]
