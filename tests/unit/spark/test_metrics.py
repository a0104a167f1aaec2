"""Progress of a streaming query, from what Spark reports."""

from toymq_spark.metrics import progress_of


def test_progress_says_how_far_behind_a_query_is() -> None:
    found = progress_of(
        {
            "id": "i", "name": None, "batchId": 3, "numInputRows": 7, "processedRowsPerSecond": 3.5, "batchDuration": 20,
            "sources": [
                {"endOffset": {"a": {"0": 5}}, "latestOffset": '{"a": {"0": 9}, "b": {"0": 2}}'},
                {"endOffset": "12", "latestOffset": None},
            ],
        }
    )  # fmt: skip
    assert (found.query, found.batch, found.rows, found.rows_per_s) == ("i", 3, 7, 3.5)
    assert (found.behind, found.behind_total) == ({"a": 4, "b": 2}, 6)
