"""Progress figures of a streaming query, from Spark's reports."""

from prometheus_client.parser import text_string_to_metric_families

from toymq_spark.metrics import BehindLatest, Progress, progress_of


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


def test_ids_without_a_record_are_not_behind() -> None:
    latest = '{"a": {"0": 10000009, "removed": 10000000, "incarnation": "x"}, "b": {"0": 2, "removed": 7}}'
    source = {"endOffset": {"a": {"0": 5}}, "latestOffset": latest}
    assert progress_of({"id": "i", "batchId": 1, "sources": [source]}).behind == {"a": 4, "b": 0}


def test_partitions_are_behind_each_by_itself() -> None:
    latest = '{"a": {"0": 9, "1": 70, "3": 4, "removed": {"1": 60}, "incarnation": {"0": "x"}}}'
    source = {"endOffset": {"a": {"0": 5, "1": 3}}, "latestOffset": latest}
    assert progress_of({"id": "i", "batchId": 1, "sources": [source]}).behind == {"a#0": 4, "a#1": 7, "a#3": 4}


def test_prometheus_reads_how_far_behind_queries_are() -> None:
    listener = BehindLatest()
    assert list(text_string_to_metric_families(listener.exposition())) != []
    name = 'to "the"\nlake\\'
    listener.queries = {"1": Progress(name, 3, 7, 1.0, 20, {"a": 4, "b": 0}), "2": Progress("q", 0, 0, 0.0, 1, {"a": 1})}
    (family,) = text_string_to_metric_families(listener.exposition())
    assert (family.name, family.type) == ("toymq_spark_behind", "gauge")
    assert {(*sample.labels.values(), sample.value) for sample in family.samples} == {
        (name, "a", 4), (name, "b", 0), ("q", "a", 1)
    }  # fmt: skip
