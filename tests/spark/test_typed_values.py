"""Typed values within Spark: the examples of docs/spark.md, and an archive with its report. The rest is in
tests/unit/spark/values."""

import contextlib
import io
import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.packaging.test_guides import BLOCK, text_of
from tests.spark.conftest import WAIT_S
from tests.support.requirements import require
from tests.support.schema_registry import schema_registry
from toymq import sync
from toymq_spark.jobs import archive, report
from toymq_spark.manifest import Archive, ArchiveMismatch

pytestmark = [require("java"), pytest.mark.spark_slow]


@pytest.mark.parametrize("section", ["Typed values", "The newest row of each key", "How far behind"])
def test_the_page_says_what_its_programs_print(spark: SparkSession, url: str, section: str) -> None:
    """The programs run in order: the second reads what the first has written."""
    (text,) = re.findall(rf"^##+ {section}\n(.*?)(?=^##+ |\Z)", text_of("spark"), re.MULTILINE | re.DOTALL)
    blocks = BLOCK.findall(text)
    assert [kind for kind, _ in blocks] == ["python", "text"] * (len(blocks) // 2)
    for (_, program), (_, said) in zip(blocks[::2], blocks[1::2], strict=True):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(program.replace("toymq://127.0.0.1:6789", url), section, "exec"), {"spark": spark})
        assert printed.getvalue() == said, program


def test_an_archive_of_typed_values_and_its_report(
    spark: SparkSession, url: str, client: sync.Client, tmp_path: Path
) -> None:
    list(client.pub_many("typed", (b'{"id": %d, "day": "2026-11-28"}' % n for n in range(20))))
    client.pub("typed", b"not json")
    options = {"url": url, "subscribe": "typed", "badRows": "deadletter"}
    typed = {"valueFormat": "json", "valueSchema": "id BIGINT, day DATE"}
    query = archive.start(spark, {**options, **typed}, tmp_path / "to", tmp_path / "checkpoint", once=True)
    assert query.awaitTermination(WAIT_S)
    assert query.exception() is None
    archived = archive.read(spark, tmp_path / "to")
    assert archived.selectExpr("SUM(value.id)", "MAX(value.day)", "COUNT(*)").collect()[0][::2] == (190, 20)
    values = Archive(tmp_path / "to").dataset().to_table().column("value").to_pylist()
    assert sorted(value["id"] for value in values) == list(range(20))
    found = report.report(archived, "1 hour", tmp_path / "to")
    assert found.columns == [
        {"topic": "typed", "column": "id", "filled": 20, "different": 20, "least": "0", "most": "19"},
        {"topic": "typed", "column": "day", "filled": 20, "different": 1, "least": "2026-11-28", "most": "2026-11-28"},
    ]
    (row,) = found.topics
    assert (row["records"], row["largest"]) == (20, len('{"id":10,"day":"2026-11-28"}'))
    bad = spark.read.format("toymq").options(url=url, subscribe="typed.bad", includeHeaders="true").load()
    reasons = [(one["reason"], one["count"]) for one in report.report(bad, "1 hour").reasons]
    assert reasons == [("value does not fit valueSchema", 1)]
    others = {**options, **typed, "valueSchema": "id STRING"}
    with pytest.raises(ArchiveMismatch, match="in one archive: archive to another place"):
        archive.start(spark, others, tmp_path / "to", tmp_path / "checkpoint", once=True)


def test_protobuf_of_a_registry(spark: SparkSession, url: str, client: sync.Client) -> None:
    """A worker compiles the schema of a value that was written with another version."""
    pytest.importorskip("grpc_tools")
    source = 'syntax = "proto3"; package shop; message Order { int64 id = 1; %s }'
    with schema_registry() as registry:
        old, new = (registry.add_protobuf("orders-value", source % more) for more in ("", "string name = 2;"))
        typed = {"url": url, "valueFormat": "protobuf", "valueSchema": f"{registry.url}/subjects/orders-value/versions/{new}"}
        rows = spark.range(3).selectExpr("struct(id, concat('order ', id) AS name) AS value", "CAST(id AS STRING) AS key")
        rows.repartition(1).write.format("toymq").options(topic="registered", **typed).mode("append").save()
        client.pub("registered", b"\0%b\0\x08\x09" % old.to_bytes(4, "big"), key="9")
        client.pub("registered", b"\0\0\0\0\x63\0\x08\x09", key="10")
        source_of = spark.read.format("toymq").options(subscribe="registered", badRows="deadletter", **typed)
        found = sorted((row.id, row.name) for row in source_of.load().select("value.*").collect())
        assert found == [(0, "order 0"), (1, "order 1"), (2, "order 2"), (9, "")]
    raw = spark.read.format("toymq").options(url=url, subscribe="registered").load().where("key = '1'").collect()
    assert [bytes(row.value) for row in raw] == [b"\0%b\0\x08\x01\x12\x07order 1" % new.to_bytes(4, "big")]
    bad = spark.read.format("toymq").options(url=url, subscribe="registered.bad", includeHeaders="true").load()
    assert [one["reason"] for one in report.report(bad, "1 hour").reasons] == ["value does not fit valueSchema"]
