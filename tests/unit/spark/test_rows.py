"""Rows of a table as messages: their order, their headers, and what cannot be published."""

from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.frames import encode_attributes
from toymq_spark.batches import HEADERS_TYPE, key_and_headers
from toymq_spark.errors import OptionError
from toymq_spark.rows import CLAIMS_TOPIC, check_columns, rows_of


def table(values: Sequence[bytes], **columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary()), **columns})



def test_keys_and_headers_go_there_and_come_back() -> None:
    headers = pa.array([[("A", b"b: c")], None, []], HEADERS_TYPE)
    keyed = rows_of([table([b"1", b"2", b"3"], key=pa.array([b"k", "ö".encode(), None]), headers=headers)], "t")
    keyed.sort(key=lambda row: row.body[row.hdr :])
    assert [row.body[: row.hdr] for row in keyed] == [b"A: b: c\ntoymq-key: k\n", "toymq-key: ö\n".encode(), b""]
    blocks = [encode_attributes(headers=row.body[: row.hdr], sequence=1) for row in keyed]
    assert [key_and_headers(b"p", block) for block in blocks] == [
        (b"k", [("A", b"b: c")]), ("ö".encode(), None), (None, None)
    ]  # fmt: skip

odd_lines = st.lists(st.binary(max_size=6).map(lambda line: line.replace(b"\n", b"")), max_size=4)


@given(odd_lines)
@example([b": v"])
@example([b"a: b\r", b"a: \xff", b"no colon", b"", b"a:b", b":"])
def test_what_plain_clients_publish_as_headers_is_said_again(lines: list[bytes]) -> None:
    """Malformed header lines, too: read, written, and read again they are the same."""
    _, read = key_and_headers(b"k", encode_attributes(headers=b"\n".join(lines)))
    (row,) = rows_of([table([b"1"], key=pa.array([b"k"]), headers=pa.array([read], HEADERS_TYPE))], "t")
    assert key_and_headers(b"p", encode_attributes(headers=row.body[: row.hdr], sequence=1)) == (b"k", read)


def test_an_empty_key_is_not_none() -> None:
    for key in (b"", "", b"\xff\r"):
        (row,) = rows_of([table([b"1"], key=pa.array([key]))], "t")
        assert key_and_headers(b"p", encode_attributes(headers=row.body[: row.hdr], sequence=1)) == (
            key.encode() if isinstance(key, str) else key, None
        )  # fmt: skip


def refused(batch: pa.RecordBatch, topic: str | None = "t") -> str:
    with pytest.raises(OptionError) as error:
        rows_of([batch], topic)
    return str(error.value)


def test_rows_that_cannot_be_published_are_named() -> None:
    one = [b"v"]
    from_source = {"topic": pa.array(["s"]), "offset": pa.array([7], pa.int64()), "partition": pa.array([0], pa.int32())}
    text = refused(table([None], **from_source))  # type: ignore[list-item]
    assert text.startswith("column value is null, and a message has bytes: leave such rows out")
    assert text.endswith("(in the row of topic s, offset 7)")
    text = refused(table(one, partition=pa.array([3], pa.int32())))
    assert text == "column partition is 3, and the route or the key chooses the partition: leave the column out"
    assert [row.body for row in rows_of([table(one, partition=pa.array([None], pa.int32()))], "t")] == one
    no_topic = pa.array([None], pa.string())
    assert "column topic is null: set it, or the option topic" in refused(table(one, topic=no_topic), None)
    assert "column topic topic name must be" in refused(table(one, topic=pa.array(["a b"])), None)
    assert "which has the sink's claims" in refused(table(one), CLAIMS_TOPIC)
    assert "column key has a line break" in refused(table(one, key=pa.array([b"a\nb"])))
    for name, numbers in (("delayMs", (-1, 10**15)), ("ttlMs", (-1, 0, 10**15))):
        for number in numbers:
            text = refused(table(one, **{name: pa.array([number])}, **from_source))
            least = int(name == "ttlMs")
            assert text.startswith(f"column {name} is {number}: write {least} to 316224000000 (ten years)")
            assert text.endswith("(in the row of topic s, offset 7)")
    for header, named in (
        (("a:b", b""), "a header named 'a:b', which a header line cannot carry"),
        (("a\nb", b""), "which a header line cannot carry: leave it out"),
        (("", None), "a header named '', which"),
        (("a", b"1\n2"), "a line break in 'a'"),
        (("toymq-key", b""), "use the column key instead"),
    ):
        text = refused(table(one, headers=pa.array([[header]], HEADERS_TYPE), **from_source))
        assert named in text
        assert text.endswith("(in the row of topic s, offset 7)")


def test_columns_of_the_sink() -> None:
    check_columns({"value": "string", "key": "binary", "delayMs": "bigint", "offset": "bigint"}, "t")
    for columns, topic, named in (
        ({"key": "binary"}, "t", "column value is missing"),
        ({"value": "int"}, "t", "column value is int: make it binary or string"),
        ({"value": "string"}, None, "no topic: set the option topic"),
        ({"value": "string", "valeu": "string"}, "t", "unknown column valeu"),
        ({"value": "string", "headers": "map<string,string>"}, "t", "column headers is map<string,string>"),
    ):
        with pytest.raises(OptionError, match=named):
            check_columns(columns, topic)
