"""A timestamp in a field table is still a timestamp after decoding."""

from toymq_py.amqp.fields import Reader, table
from toymq_py.amqp.timestamp import Timestamp


def test_a_time_is_no_number_in_a_table() -> None:
    found = Reader(table({"at": Timestamp(1_700_000_000), "count": 1_700_000_000})).table()
    assert found == {"at": 1_700_000_000, "count": 1_700_000_000}
    assert [type(value) for value in found.values()] == [Timestamp, int]
