"""The newest row of each key, against a model, and on a broker and its directory."""

from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import BinaryType, StructField, StructType

from tests.support.broker_process import BrokerProcess
from toymq import sync
from toymq.message import Sequenced
from toymq_spark import latest
from toymq_spark.errors import OptionError, TooManyKeys
from toymq_spark.options import parse_source
from toymq_spark.source import BatchReader, batch_reader

RECORDS = st.lists(st.tuples(st.none() | st.sampled_from([b"a", b"b", b"c"]), st.sampled_from([b"", b"x"])), max_size=30)
KEY_VALUE = StructType([StructField("key", BinaryType()), StructField("value", BinaryType(), False)])


def batches(records: list[tuple[bytes | None, bytes]], size: int = 4) -> Iterator[pa.RecordBatch]:
    for at in range(0, len(records), size):
        part = records[at : at + size]
        columns = [[key for key, _ in part], [value for _, value in part], range(at, at + len(part))]
        yield pa.RecordBatch.from_arrays(
            [pa.array(column, field.type) for column, field in zip(columns, latest.COLUMNS, strict=True)], schema=latest.COLUMNS
        )


@given(RECORDS)
def test_newest_rows_by_a_model(records: list[tuple[bytes | None, bytes]]) -> None:
    expected: dict[bytes, int] = {}
    for msg_id, (key, value) in enumerate(records):
        if key is not None:
            expected.pop(key, None)
            if value:
                expected[key] = msg_id
    ids = latest.newest("t", batches(records))
    assert list(ids) == sorted(expected.values())
    kept = [row for batch in latest.only(batches(records, 3), ids) for row in batch.to_pylist()]
    assert {row["key"]: row["offset"] for row in kept} == expected
    assert len(kept) == len(expected)


def test_the_group_header_stands_for_the_key() -> None:
    """As for mode=keyed: an empty group header means no group, and without the header the key counts."""
    rows = [
        (b"e1", b"ann"), (b"e2", b"bob"), (b"e3", b"ann"), (b"e4", b""), (b"bob", None), (None, b"cat"), (b"e5", ...),
    ]  # fmt: skip
    headers = [
        None if group is None else [{"key": "toymq-group", "value": None if group is ... else group}] for _, group in rows
    ]
    columns = [[key for key, _ in rows], [b"x"] * len(rows), range(len(rows)), headers]
    (batch,) = [pa.RecordBatch.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, latest.GROUP_COLUMNS, strict=True)],
        schema=latest.GROUP_COLUMNS,
    )]  # fmt: skip
    assert list(latest.newest("t", [batch])) == [2, 4, 5, 6]


def test_keys_beyond_the_limit_name_another_way() -> None:
    records = [(b"%d" % n, b"x") for n in range(10)]
    with pytest.raises(TooManyKeys, match=r"topic t has more than 9 keys.*groupBy\(\"key\"\)"):
        latest.newest("t", batches(records), keys_max=9)
    records[3:7] = [(b"3", b"x"), (b"3", b""), (b"2", b""), (b"1", b"")]
    assert list(latest.newest("t", batches(records), keys_max=4)) == [0, 7, 8, 9], "a key that is gone takes no place for long"


def test_far_ids_are_read_without_those_between() -> None:
    ids = latest.newest("t", batches([(b"a", b"x")]))
    for more in (5, 5 + latest.SKIP_IDS, 6 + 2 * latest.SKIP_IDS):
        ids.append(more)
    assert list(latest.ranges(ids)) == [(0, 6 + latest.SKIP_IDS), (6 + 2 * latest.SKIP_IDS, 7 + 2 * latest.SKIP_IDS)]
    assert list(latest.ranges(ids[:0])) == []


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("data") / "d") as running:
        yield running


@pytest.mark.parametrize("place", ["url", "path"])
def test_a_table_of_a_topic(broker: BrokerProcess, place: str) -> None:
    """The rows are written by Spark's sink, with a key column, so that keys repeat."""
    topic = f"prices-{place}"
    rows = [("a", b"1"), ("b", b"1"), ("a", b"2"), ("c", b"1"), ("b", b""), ("d", b""), ("d", b"7")]
    with sync.connect(broker.url) as client:
        client.pub(topic, b"without a key")
        for seq, (key, value) in enumerate(rows):
            block = f"toymq-key: {key}\n".encode()
            list(client.pub_many(topic, [Sequenced("p", seq, block + value, len(block))]))
    at = {"url": broker.url} if place == "url" else {"path": str(broker.data_dir)}
    options = parse_source({**at, "subscribe": topic, "startingOffsets": "latestByKey"}, "batch")
    reader = batch_reader(options, KEY_VALUE)
    assert type(reader) is BatchReader, "filters do not choose among the rows of a key"
    parts = reader.partitions()
    assert len(parts) == 1
    found = [row for batch in reader.read(parts[0]) for row in batch.to_pylist()]
    assert found == [{"key": key, "value": value} for key, value in ((b"a", b"2"), (b"c", b"1"), (b"d", b"7"))]


def test_a_table_of_the_groups_of_another_client(broker: BrokerProcess) -> None:
    """As docs/coming-from-kafka.md says: the key is the event's, and the group is the customer."""
    with sync.connect(broker.url) as client:
        statuses = (("e1", "ann", "ordered"), ("e2", "bob", "ordered"), ("e3", "ann", "paid"), ("e4", "bob", ""))
        for event, group, status in statuses:
            client.pub("kafka-groups", status.encode(), key=event, headers={"toymq-group": group})
        client.pub("kafka-groups", b"alone", key="cat")
    found = {}
    for start in ("latestByKey", "latestByGroup"):
        options = parse_source({"url": broker.url, "subscribe": "kafka-groups", "startingOffsets": start}, "batch")
        reader = batch_reader(options, KEY_VALUE)
        rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
        found[start] = [(row["key"], row["value"]) for row in rows]
    assert found["latestByGroup"] == [(b"e3", b"paid"), (b"cat", b"alone")]
    assert len(found["latestByKey"]) == 4, "each event is the newest of its key"


def test_what_latest_by_key_excludes() -> None:
    at = {"url": "toymq://h:1", "subscribe": "t", "startingoffsets": "LATESTBYKEY"}
    with pytest.raises(OptionError, match="option startingOffsets: latestByKey is of a batch: a stream has every record"):
        parse_source(at, "stream")
    for name in ("startingTimestamp", "minPartitions", "maxRecordsPerPartition"):
        with pytest.raises(OptionError, match=f"option {name}: has no effect here: latestByKey reads each topic from its"):
            parse_source({**at, name.lower(): "1"}, "batch")
