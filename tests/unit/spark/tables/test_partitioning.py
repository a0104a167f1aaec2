"""``--partition-by``."""

import pytest

from tests.support.tables import batch_of
from toymq_py.errors import ConfigError
from toymq_spark.tables.partitioning import DEFAULT, Key, parse_partitions


def test_expressions() -> None:
    assert parse_partitions(DEFAULT) == (Key("days"), Key("topic"))
    assert parse_partitions(" topic , hours(timestamp)") == (Key("topic"), Key("hours"))
    assert parse_partitions("none") == ()


@pytest.mark.parametrize("text", ["", "days", "days(offset)", "topic,", "bucket(16, key)", "none,topic", "minutes(timestamp)"])
def test_what_is_no_expression(text: str) -> None:
    with pytest.raises(ConfigError, match=r"invalid partition '.*': write topic, years\(timestamp\), .* of these, or none"):
        parse_partitions(text)


def test_an_expression_that_is_there_twice() -> None:
    with pytest.raises(ConfigError, match="invalid partitions 'topic,topic': an expression is there twice"):
        parse_partitions("topic,topic")


def test_values_as_a_table_has_them() -> None:
    batch = batch_of(range(13, 14))  # the 28th at noon, and 13 hours
    found = {key.name: key.text(key.of(batch)[0]) for key in map(Key, ("years", "months", "days", "hours", "topic"))}
    assert found == {
        "year": "2026", "month": "2026-11", "date": "2026-11-29", "hour": "2026-11-29-01", "topic": "orders",
    }  # fmt: skip
