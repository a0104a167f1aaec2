"""The table of metrics, histograms and the percentile of syncs."""

import pytest

from toymq_py.metrics import BY_NAME, FSYNC_SAMPLES, LIMITS, TABLE, ClusterRows, Exemplar, Histogram, Kind, Metrics


def test_every_metric_stands_once_and_has_bounds_if_it_is_a_histogram() -> None:
    assert len(BY_NAME) == len(TABLE)
    for metric in TABLE:
        assert bool(metric.bounds) is (metric.kind is Kind.HISTOGRAM), metric.name
        assert list(metric.bounds) == sorted(metric.bounds)
        assert metric.name.endswith("_total") is (metric.kind is Kind.COUNTER), metric.name


def test_an_observation_counts_in_the_bucket_that_ends_at_or_above_it() -> None:
    histogram = Histogram(BY_NAME["commit_messages"])
    for value in (1, 2, 4, 5):
        histogram.observe(value)
    histogram.observe(1e9, 3)
    assert histogram.counts == [1, 2, 1, *[0] * 6, 3]
    assert (histogram.count, histogram.sum) == (7, 12 + 3e9)
    exemplar = Exemplar(2, "t", "s", 1.0)
    histogram.exemplify(exemplar)
    assert histogram.exemplars == {1: exemplar}


def test_the_percentile_is_of_the_newest_syncs() -> None:
    metrics = Metrics()
    assert metrics.fsync_p99_s() == 0
    for _ in range(FSYNC_SAMPLES):
        metrics.synced(9.0)
    for n in range(FSYNC_SAMPLES):
        metrics.synced(n / 1000)
    assert metrics.fsync_p99_s() == pytest.approx((FSYNC_SAMPLES - 1) * 99 // 100 / 1000)


def test_refusals_are_counted_by_code_and_by_limit() -> None:
    metrics = Metrics()
    metrics.refused("FORBIDDEN", 3)
    metrics.refused("BAD_NAME")
    metrics.refused("MOVED")  # a redirect
    assert (metrics.errors, metrics.error_total) == ({"FORBIDDEN": 3, "BAD_NAME": 1}, 4)
    for limit in LIMITS:
        metrics.limit_reached(limit)
    assert set(metrics.limits_reached.values()) == {1}


def test_a_bucket_is_in_stats_with_what_it_lacks() -> None:
    metrics = Metrics()
    assert metrics.tier_stats(None) == {}, "without --tier"
    metrics.tier_url, metrics.tier_problem = "s3://b", "away"
    assert metrics.tier_stats("too much") == {"tier": "s3://b", "tier_problem": "away; publishing is refused: too much"}


def test_a_leader_says_how_its_cluster_is() -> None:
    metrics = Metrics()
    assert metrics.cluster_stats() == {}, "a broker that is in none"
    metrics.cluster = lambda: ClusterRows({
        "epoch": {(): 7}, "isr_size": {(): 2}, "replicas": {(): 3}, "min_in_sync": {(): 2},
        "replica_lag_bytes": {("n3",): 512, ("n2",): 0},
        "replica_lag_seconds": {("n3",): 0.12345}, "etcd_silent_seconds": {(): 1.23456},
    }, {})  # fmt: skip
    assert metrics.cluster_stats() == {
        "cluster": {
            "epoch": 7, "in_sync": 2, "replicas": 3, "min_in_sync": 2, "damaged_segments": 0, "etcd_silent_s": 1.235,
            "followers": [{"name": "n2", "lag_bytes": 0, "lag_s": 0.0}, {"name": "n3", "lag_bytes": 512, "lag_s": 0.123}],
        }
    }  # fmt: skip


def test_a_leader_of_a_group_says_what_the_groups_have() -> None:
    metrics = Metrics()
    metrics.cluster = lambda: ClusterRows({"group_topics": {("b",): 2.0, ("a",): 0.0}, "group_load": {("b",): 7.4}}, {})
    assert metrics.cluster_stats()["cluster"]["groups"] == [
        {"name": "a", "topics": 0, "messages_s": 0}, {"name": "b", "topics": 2, "messages_s": 7},
    ]  # fmt: skip
