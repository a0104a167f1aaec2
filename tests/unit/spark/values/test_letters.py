"""Bad rows are written to a topic of their own on a real broker: once, with the reason."""

import json
from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from tests.support.broker_process import BrokerProcess
from toymq import sync
from toymq_py.storage.record import ATTRIBUTE_HEADERS, Frame, iter_frames
from toymq_spark.batches import parse_header_block
from toymq_spark.errors import BadValue
from toymq_spark.options import BrokerAddress, parse_source
from toymq_spark.source import BatchReader
from toymq_spark.values.letters import Letter, LetterBox, letter_headers

WANTED = StructType([
    StructField("topic", StringType(), False), StructField("offset", LongType(), False),
    StructField("value", StructType([StructField("a", LongType())])),
])  # fmt: skip


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("data") / "d") as running:
        yield running


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[sync.Client]:
    with sync.connect(broker.url) as connected:
        yield connected


def frames(client: sync.Client, topic: str) -> list[Frame]:
    return list(iter_frames(client.fetch(topic, 0, 100).frames))


def headers(frame: Frame) -> dict[str, str]:
    return {name: (value or b"").decode() for name, value in parse_header_block(frame.attributes[ATTRIBUTE_HEADERS])}


def read(url: str, topic: str, **more: str) -> list[dict[str, object]]:
    options = {"url": url, "subscribe": topic, "valueFormat": "json", "valueSchema": "a BIGINT", **more}
    reader = BatchReader(parse_source(options, "batch"), WANTED)
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def test_a_source_moves_bad_rows_once_however_often_it_reads(client: sync.Client, broker: BrokerProcess) -> None:
    client.pub("orders", b'{"a": 1}')
    client.pub("orders", b"not json", key="k1", headers={"color": "red"})
    client.pub("orders", b'{"a": 2}')
    for split in ("1", "3"):  # another cut of the ids is another attempt, too
        found = read(broker.url, "orders", badRows="deadletter", minPartitions=split)
        assert [(row["offset"], row["value"]) for row in found] == [(0, {"a": 1}), (2, {"a": 2})]
    (letter,) = frames(client, "orders.bad")
    assert letter.payload == b"not json"
    assert headers(letter) == {
        "color": "red", "toymq-key": "k1", "toymq-origin-topic": "orders", "toymq-origin-id": "1",
        "toymq-reason": "value does not fit valueSchema", "toymq-error-type": "BadValue", "toymq-error": "not one JSON object",
    }  # fmt: skip
    assert len(frames(client, "orders")) == 3, "the record itself stays where it is"


def test_letters_of_a_topic_made_anew_are_others(client: sync.Client, broker: BrokerProcess) -> None:
    for count in (1, 2):
        client.pub("anew", b"bad")
        assert read(broker.url, "anew", badRows="deadletter") == []
        assert len(frames(client, "anew.bad")) == count
        client.delete("anew")


def test_bad_rows_fail_or_are_null(client: sync.Client, broker: BrokerProcess) -> None:
    client.pub("some", b"")
    client.pub("some", b"[]")
    with pytest.raises(BadValue, match="topic some, offset 1: value does not fit valueSchema"):
        read(broker.url, "some")
    assert [row["value"] for row in read(broker.url, "some", badRows="null")] == [None, None]


def test_bad_rows_of_bad_rows_are_refused_by_name(client: sync.Client, broker: BrokerProcess) -> None:
    client.pub("lost.bad", b"bad")
    with pytest.raises(BadValue, match=r"lost.bad has bad rows itself: read it with badRows=null, or leave"):
        read(broker.url, "lost.bad", badRows="deadletter")
    assert [row["value"] for row in read(broker.url, "lost.bad", badRows="null")] == [None]
    with pytest.raises(BadValue, match="badRows=deadletter: topic name must be 1 to 196"):
        LetterBox(BrokerAddress(broker.url), "x" * 195, None)


def test_what_a_header_cannot_carry_is_left_out() -> None:
    odd = [("", b"no name"), ("no colon", None), ("line\x01", b"x"), ("fine", b"a\xff\rb"), ("toymq-reason", b"forged")]
    found = letter_headers("t", Letter(7, b"k\xff", b"v", odd, "why", "exactly"))
    assert found == {
        "fine": "a� b", "toymq-key": "k�", "toymq-origin-topic": "t", "toymq-origin-id": "7", "toymq-reason": "why",
        "toymq-error-type": "BadValue", "toymq-error": "exactly",
    }  # fmt: skip
    assert "toymq-key" not in letter_headers("t", Letter(7, b"a\nb", b"v", None, "why", "exactly"))


def test_a_letter_that_is_too_large_fails_by_name(broker: BrokerProcess) -> None:
    box = LetterBox(BrokerAddress(broker.url), "large", None)
    value = b"x" * (2 << 20)
    try:
        with pytest.raises(BadValue, match="topic large, offset 3: exactly, and with the reason it is too large"):
            box.send([Letter(3, None, value, None, "why", "exactly")])
    finally:
        box.close()


def test_whatever_the_headers_are_they_arrive(client: sync.Client, broker: BrokerProcess) -> None:
    box = LetterBox(BrokerAddress(broker.url), "odd", None)
    names = ["plain", " lead", "ümlaut", "a b", "\u2028", "toymq-group", "content-type"]
    try:
        for offset, name in enumerate(names):
            box.send([Letter(offset, None, b"v", [(name, "wert ü\u2028".encode())], "why", json.dumps("ü"))])
    finally:
        box.close()
    assert len(frames(client, "odd.bad")) == len(names)
    assert pa.array([frame.payload for frame in frames(client, "odd.bad")]).unique().to_pylist() == [b"v"]
