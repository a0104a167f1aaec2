"""A topic is deleted and created again under a query that writes to another topic: the loss is named, and the query can go on
after an interrupted batch. ADR 0135, 0138."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.spark.conftest import WAIT_S
from tests.spark.test_spark import forget_commit, records
from tests.support.requirements import require
from toymq import sync

pytestmark = [require("java"), pytest.mark.spark_slow]


def test_a_topic_made_anew_under_an_interrupted_batch(
    spark: SparkSession, url: str, client: sync.Client, tmp_path: Path
) -> None:
    """Found: the query was stuck in ReplayMismatch: the batch had rows of the old topic, and no later batch could begin."""

    def run(sink: Mapping[str, str] | None = None, **source: str) -> None:
        query = (
            spark.readStream.format("toymq").options(url=url, subscribe="made", startingOffsets="earliest", **source).load()
            .writeStream.format("toymq").options(url=url, topic="made-copy", **(sink or {}))
            .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination(WAIT_S)

    list(client.pub_many("made", (b"old %d" % n for n in range(5))))
    run()
    forget_commit(tmp_path / "checkpoint", 0)
    old = client.topic_range("made").incarnation
    client.delete("made")
    list(client.pub_many("made", (b"new %d" % n for n in range(9))))
    new = client.topic_range("made").incarnation
    with pytest.raises(PySparkException, match=f"its incarnation was {old} and is {new}; .*failOnDataLoss=false"):
        run()
    with pytest.raises(PySparkException, match=r"an earlier one had 5 with") as error:
        run(failOnDataLoss="false")
    named = re.search(r"skipBatch=([0-9]+) of the sink goes past this batch", str(error.value))
    assert named is not None, str(error.value)
    run(failOnDataLoss="false", sink={"skipBatch": named[1]})
    expected = [b"old %d" % n for n in range(5)] + [b"new %d" % n for n in range(9)]
    assert [frame.payload for frame in records(client, "made-copy")] == expected, "each once, and nothing again"
    client.pub("made", b"later")
    run()
    assert [frame.payload for frame in records(client, "made-copy")] == [*expected, b"later"], "without any option"
