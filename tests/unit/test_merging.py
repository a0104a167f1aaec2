"""Topics and figures of several workers. ``tests/unit/session/test_gathering.py`` has them in replies."""

from toymq_py.merging import merged_stats, merged_topics


def test_topics_are_in_the_order_of_their_names() -> None:
    assert merged_topics([[{"topic": "b"}], [], [{"topic": "a"}]]) == [{"topic": "a"}, {"topic": "b"}]
    assert merged_topics([]) == []


def test_one_process_is_as_it_was() -> None:
    stats = {"version": "1", "publish_total": 1, "rate": 0.5, "disk_low": False, "limits": {}, "tokens": [1]}
    assert merged_stats([stats]) == stats


def test_a_figure_that_one_does_not_know_counts_for_the_others() -> None:
    assert merged_stats([{"a": 1}, {}, {"a": 2}]) == {"a": 3}
