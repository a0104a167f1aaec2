"""Values of jobs: they are read back as the types that the function declares, and a mismatch is refused by name."""

import enum
import json
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, Optional
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toymq.json_values import DEPTH_MAX, dump, load, reader_of, result_reader, write
from toymq_py.errors import BadArgument


class Colour(enum.Enum):
    RED = "red"
    BLUE = 2


@dataclass
class Size:
    width: int
    height: int = 3
    tags: list[str] = field(default_factory=list)


@dataclass
class Box:
    size: Size
    when: datetime | None = None


VALUES = [
    (int, 7), (float, 2.5), (bool, True), (str, "ä\n"), (None, None), (Any, {"a": [1]}), (bytes, b"\x00\xff"),
    (datetime, datetime(2026, 11, 27, 9, 30, tzinfo=UTC)), (date, date(2026, 11, 27)), (time, time(9, 30)),
    (timedelta, timedelta(seconds=1.5)), (UUID, UUID(int=5)), (Decimal, Decimal("1.10")), (Path, Path("/a/b")),
    (Colour, Colour.BLUE),
    (list[int], [1, 2]), (list, ["a", 1]), (set[str], {"a"}), (tuple[int, str], (1, "a")), (tuple[int, ...], (1, 2, 3)),
    (dict[str, list[int]], {"a": [1]}), (int | None, None),
    (Optional[str], "a"), (Literal["a", 1], 1), (Annotated[int, "unit"], 3),  # noqa: UP045 (people write it)
    (Size, Size(1, 2, ["x"])), (Box, Box(Size(1), datetime(2026, 1, 1, tzinfo=UTC))), (list[Size], [Size(1)]),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "value"), VALUES, ids=[str(kind) for kind, _ in VALUES])
def test_a_value_is_read_back_as_it_was(kind: object, value: object) -> None:
    document = json.loads(json.dumps(write("it", value)))
    assert reader_of("it", kind)("it", document) == value


@pytest.mark.parametrize("kind", [str, Path, str | bytes, Path | bytes, list[str] | list[bytes], Literal["Y2F0"]])
def test_bytes_are_not_taken_for_the_text_of_their_base64(kind: object) -> None:
    """Found by a trial: the sender's check accepted bytes for a text, and the worker got 'Y2F0'."""
    value = [b"cat"] if "list" in str(kind) else b"cat"
    with pytest.raises(BadArgument, match="it"):
        reader_of("it", kind)("it", write("it", value))


@pytest.mark.parametrize("kind", [bytes, bytes | None, bytes | str, UUID | bytes, int | bytes])
def test_bytes_are_bytes_where_the_worker_reads_them_so(kind: object) -> None:
    written = write("it", b"cat")
    assert reader_of("it", kind)("it", written) == reader_of("it", kind)("it", json.loads(json.dumps(written))) == b"cat"


REFUSED = [
    (int, True, "it is a whole number, not True"),
    (int, 1.5, "it is a whole number, not 1.5"),
    (float, "1", "it is a number, not '1'"),
    (bool, 1, "it is true or false, not 1"),
    (str, None, "it is a text, not None"),
    (datetime, "soon", "it is a date and time, 2026-11-27T09:30:00+00:00 say, not 'soon'"),
    (bytes, "?", "it is bytes in base64, not '?'"),
    (Colour, "green", "it is one of ['red', 2], not 'green'"),
    (Literal["a"], "b", "it is one of ['a'], not 'b'"),
    (list[int], [1, "2"], "it[1] is a whole number, not '2'"),
    (list[int], "12", "it is a list, not '12'"),
    (tuple[int, str], [1], "it is a list of 2, not [1]"),
    (dict[str, int], {"a": "b"}, "it['a'] is a whole number, not 'b'"),
    (int | None, "x", "it is a whole number, not 'x'; or it is null, not 'x'"),
    (Size, {}, "it has no width, which Size needs"),
    (Size, {"width": 1, "depth": 2}, "it has depth, which Size does not know"),
    (Box, {"size": {"width": "1"}}, "it.size.width is a whole number, not '1'"),
    (float, 10**400, f"it is a number, not {'1' + '0' * 17}...{'0' * 19}"),
    (timedelta, 1e300, "it is a number of seconds, not 1e+300"),
    (Decimal, "1,5", "it is a decimal number in quotes, not '1,5'"),
]


@pytest.mark.parametrize(("kind", "value", "text"), REFUSED, ids=[text for _, _, text in REFUSED])
def test_a_value_that_does_not_fit_is_refused_by_its_name(kind: object, value: object, text: str) -> None:
    with pytest.raises(BadArgument) as refused:
        reader_of("it", kind)("it", value)
    assert str(refused.value) == text


def test_a_result_whose_annotation_is_no_type_of_json_is_read_as_it_is() -> None:
    assert result_reader(object)("it", [1]) == [1]
    assert result_reader(complex)("it", [1]) == [1]
    assert result_reader(set[int])("it", [1]) == {1}


def test_a_whole_number_is_a_number() -> None:
    found = reader_of("it", float)("it", 3)
    assert (found, type(found)) == (3.0, float)


@pytest.mark.parametrize("kind", [object(), complex, dict[int, str], type, list[complex], Size.__init__])
def test_a_type_that_no_json_becomes_is_refused_at_once(kind: object) -> None:
    if kind.__class__ is object:
        kind = pytest.MonkeyPatch
    with pytest.raises(TypeError, match=r"^it: "):
        reader_of("it", kind)


def test_what_json_cannot_say_is_refused_with_what_to_pass() -> None:
    with pytest.raises(TypeError) as refused:
        write("it", object())
    assert str(refused.value) == (
        "it is of type object, which JSON does not have: pass numbers, texts, lists, sets (as lists), dicts, bytes (as base64),"
        " dates or a dataclass"
    )
    with pytest.raises(TypeError, match="a name in it is a str, not 1"):
        write("it", {1: 2})
    with pytest.raises(BadArgument, match="it is nan, which JSON cannot say"):
        write("it", float("nan"))


def test_a_value_that_contains_itself_is_refused() -> None:
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(BadArgument, match=f"nested deeper than {DEPTH_MAX} levels, or contains itself"):
        write("it", endless)


@pytest.mark.parametrize("payload", [b"", b"{", b"\xff", b"[" * 100_000, b"[NaN]", b"1" * 5000])
def test_a_payload_that_is_no_json_is_refused(payload: bytes) -> None:
    with pytest.raises(BadArgument, match="the payload is not JSON"):
        load(payload)


def test_a_model_that_validates_itself_says_what_is_wrong() -> None:
    class Model:
        @classmethod
        def model_validate(cls, value: object) -> str:
            if value == "bad":
                raise ValueError("not this")
            return f"validated {value}"

        def model_dump(self, *, mode: str) -> dict[str, str]:
            return {"mode": mode}

    assert write("it", [Model()]) == [{"mode": "json"}]
    read = reader_of("it", Model)
    assert read("it", 1) == "validated 1"
    with pytest.raises(BadArgument, match="it: not this"):
        read("it", "bad")


def test_a_value_is_published_as_compact_utf8() -> None:
    assert dump("it", {"a": ["ä", 1.5, None]}) == '{"a":["ä",1.5,null]}'.encode()
    assert load(dump("it", "\udcff")) == "\udcff"


_documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=10,
)  # fmt: skip


@given(_documents)
def test_any_document_is_read_as_it_was_written_or_refused(document: Any) -> None:
    assert json.loads(json.dumps(write("it", document))) == document
    for kind, _ in VALUES:
        try:
            reader_of("it", kind)("it", document)
        except BadArgument as error:
            assert str(error).startswith("it")  # noqa: PT017
