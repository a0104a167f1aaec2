"""Lines of a request body, however it arrived, and its JSON."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toymq_py.errors import BadArgument, BadFraming, PayloadTooLarge
from toymq_py.gateway import bodies
from toymq_py.gateway.bodies import STRUCTURE_CHARS_MAX, DuplicateMember, _check_lines, lines_of, parse_json, parse_object
from toymq_py.gateway.publish_operations import parse_line


@given(st.lists(st.text("ab\n", max_size=6).map(str.encode), min_size=1))
def test_lines_do_not_depend_on_where_pieces_end(pieces: list[bytes]) -> None:
    expected = b"".join(pieces).split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert list(lines_of(pieces)) == expected


@given(st.lists(st.text("a\n", max_size=9).map(str.encode)), st.integers(0, 9))
def test_a_line_is_bounded_wherever_its_pieces_end(pieces: list[bytes], bytes_max: int) -> None:
    begun, refused = 0, False
    for piece in pieces:
        try:
            begun = _check_lines(piece, begun, bytes_max)
        except PayloadTooLarge:
            refused = True
            break
    assert refused == (max(map(len, b"".join(pieces).split(b"\n"))) > bytes_max)


@pytest.mark.parametrize(
    "text", ["[" + "[]," * 30_000 + "[]]", '{"payload":"x","headers":{' + '"a":"b",' * 9000 + '"a":"b"}}', " " * 70_000 + "{}"]
)
def test_json_is_mostly_long_texts_or_short(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by a trial: a line of empty lists held up every other client for three seconds. Text with so much structure is
    refused before it is decoded."""
    monkeypatch.setattr(bodies, "_JSON", None)
    monkeypatch.setattr(bodies, "_REPEATING", None)
    with pytest.raises(ValueError, match=f"more than {STRUCTURE_CHARS_MAX} characters"):
        parse_json(text)


@pytest.mark.parametrize("payload", ["a" * 1_000_000, '\n"\\\\' * 100_000, "ж" * 100_000])
def test_a_long_text_is_no_structure(payload: str) -> None:
    message = {"payload": payload, "headers": {"a": "b" * 100_000}, "delay_ms": 1}
    assert parse_json(json.dumps(message)) == message


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", '{"a": -Infinity}', "1e999", "-1e999", "[" * 100_000, "1" * 5000, ""])
def test_what_python_takes_for_json_and_others_do_not(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (which of them says so does not matter)
        parse_json(text)
    with pytest.raises(ValueError):  # noqa: PT011
        parse_json(text.encode())


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
                    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5))  # fmt: skip
def test_all_other_json_is_taken(value: object) -> None:
    assert parse_json(json.dumps(value)) == parse_json(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    "text", ['{"key":"a","key":"b"}', '{"a": {"key": 1, "b": {}, "key": 1}}', '{"a": [{"key": 1, "\\u006bey": 2}], "b": 1}']
)
def test_a_member_that_is_given_twice_is_refused_by_its_name(text: str) -> None:
    """Found: the last value was used, but another reader of the same request may use the first."""
    with pytest.raises(BadFraming, match="the frame has the member 'key' twice"):
        parse_object(text, "frame")
    assert parse_json(text, may_repeat=True) == json.loads(text)
    assert parse_object('{"a": {"key": 1}, "b": {"key": 2}}') == {"a": {"key": 1}, "b": {"key": 2}}


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"])
def test_json_in_another_encoding_is_refused_by_its_name(encoding: str) -> None:
    """Found: it was accepted; in a batch of lines, some were and others not."""
    name = "-".join(encoding.upper().split("-")[:2])
    data = '{"payload": "grün"}'.encode(encoding)
    with pytest.raises(BadFraming, match=f"^the body is not in UTF-8, but in {name}[-A-Z]*: JSON is sent in UTF-8$"):
        parse_object(data)
    with pytest.raises(BadArgument, match=rf"^invalid line: it is not valid JSON \(not in UTF-8, but in {name}"):
        parse_line(data)
    assert parse_json(data, may_repeat=True) == {"payload": "grün"}, "of a payload the application chooses"


def test_bytes_that_are_no_utf_8_are_said_to_be_none() -> None:
    with pytest.raises(BadFraming, match=r"^the body is not in UTF-8: byte 15 is not valid$"):
        parse_object('{"payload": "grün"}'.encode("latin-1"))


def test_a_byte_order_mark_is_ignored() -> None:
    """PowerShell writes a byte order mark; RFC 8259, 8.1 allows to ignore it."""
    assert parse_object('{"a": 1}'.encode("utf-8-sig")) == parse_object('\ufeff{"a": 1}') == {"a": 1}


NAMES, VALUES = st.sampled_from(["a", "b", ":", '"', "\\"]), st.sampled_from([1, ":", '":', {}, {"a": ":"}])


@given(st.lists(st.tuples(NAMES, VALUES), max_size=4))
def test_exactly_what_has_a_member_twice_is_refused(members: list[tuple[str, object]]) -> None:
    text = "{" + ",".join(f"{json.dumps(name)} :{json.dumps(value)}" for name, value in members) + "}"
    try:
        parse_json(text)
    except DuplicateMember:
        assert len(dict(members)) < len(members)
    else:
        assert len(dict(members)) == len(members)
