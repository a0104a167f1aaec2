"""Codecs: values written and read back by their content type, the same for both clients."""

import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import toymq
from toymq.codecs import Codec, decoded, encoded, values
from toymq_py.errors import BadArgument, ConfigError


@dataclass
class Point:
    x: int
    at: datetime


POINT = Point(1, datetime(2026, 11, 28, tzinfo=UTC))
PLAIN = {"x": 1, "at": "2026-11-28T00:00:00+00:00"}
UPPER = Codec("text/x-upper", lambda value: str(value).upper().encode(), lambda payload: payload.decode().lower())


def round_trip(codec: Any, value: object) -> object:
    payload, headers = encoded(codec, value, None)
    return decoded(None, payload, headers)


def test_json_needs_nothing() -> None:
    assert encoded("json", POINT, {"a": "b"}) == (
        json.dumps(PLAIN, separators=(",", ":")).encode(), {"content-type": "application/json", "a": "b"},
    )  # fmt: skip
    assert round_trip("json", POINT) == PLAIN


def test_types_that_json_does_not_keep_are_said_where_values_are_published() -> None:
    """Found: a set came back as a list, and bytes as a text, without a warning."""
    said = " ".join((toymq.Client.pub_value.__doc__ or "").split())
    for value, becomes, words in (
        ({1}, [1], "sets become lists"), ((1, 2), [1, 2], "tuples and sets"), (b"x", "eA==", "bytes are a text in JSON, their"),
        (timedelta(minutes=1), 60, "timedeltas seconds"),
    ):  # fmt: skip
        assert round_trip("json", value) == becomes
        assert words in said


def test_msgpack_keeps_bytes_and_numbers_as_names() -> None:
    pytest.importorskip("msgpack")
    for value in (None, True, -1, 2**63, 1.5, math.inf, "é", b"\xff", [1, [2]], {"a": {1: b"x"}}):
        assert round_trip("msgpack", value) == value
    assert round_trip("msgpack", POINT) == PLAIN, "what MessagePack has not is written as in JSON"
    assert encoded("msgpack", 1, None) == (b"\x01", {"content-type": "application/msgpack"})
    for payload in (b"", b"\xc1", b"\x92\x01", b"\x01\x01"):
        with pytest.raises(BadArgument, match="the payload is not MessagePack"):
            decoded("msgpack", payload, {})
    with pytest.raises(BadArgument, match="the value cannot be MessagePack"):
        encoded("msgpack", 2**64, None)
    with pytest.raises(TypeError, match="the value is of type object, which JSON does not have"):
        encoded("msgpack", object(), None)


def test_without_its_package_the_remedy_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "msgpack", None)
    with pytest.raises(ConfigError, match=r'codec="msgpack" needs the package msgpack: pip install msgpack'):
        encoded("msgpack", 1, None)


def test_a_function_is_a_codec_and_has_no_content_type() -> None:
    assert encoded(lambda value: bytearray(value, "ascii"), "a", {"k": "v"}) == (b"a", {"k": "v"})
    assert decoded(int, b"17", {"content-type": "application/json"}) == 17
    with pytest.raises(TypeError, match=r"a codec makes bytes of a value, not str: return text.encode\(\)"):
        encoded(str, 17, None)


def test_a_codec_that_is_awaited_is_refused() -> None:
    """Found: with a coroutine function as decoder the value was a coroutine."""

    async def read(payload: bytes) -> str:
        return payload.decode()

    for use in (lambda: decoded(read, b"x", {}), lambda: encoded(read, "x", None), lambda: Codec("", str.encode, read)):
        with pytest.raises(TypeError, match="is called and not awaited: write `def`"):
            use()
    with pytest.raises(TypeError, match="decode is a function, not None"):
        Codec("", str.encode, None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="content_type is a str, not None"):
        Codec(None, str.encode, bytes.decode)  # type: ignore[arg-type]


def test_a_codec_of_ones_own() -> None:
    assert encoded(UPPER, "a", None) == (b"A", {"content-type": "text/x-upper"})
    assert decoded(UPPER, b"A", {}) == "a"
    assert encoded(UPPER, "a", {"content-type": "text/plain"})[1] == {"content-type": "text/plain"}, "the caller's wins"


@pytest.mark.parametrize(
    ("headers", "payload", "value"),
    [
        ({}, b"raw", b"raw"),
        ({"content-type": "application/octet-stream"}, b"raw", b"raw"),
        ({"Content-Type": "Application/JSON; charset=utf-8"}, b"[1]", [1]),
        ({"content-type": "application/problem+json"}, b"{}", {}),
    ],
)
def test_the_content_type_decides(headers: dict[str, str], payload: bytes, value: object) -> None:
    assert decoded(None, payload, headers) == value


def test_what_is_wrong_names_what_to_do() -> None:
    with pytest.raises(BadArgument, match=r"the content type 'text/csv' has no codec here: read value\(codec=…\), or"):
        decoded(None, b"a,b", {"content-type": "text/csv"})
    with pytest.raises(BadArgument, match="the payload is not JSON"):
        decoded("json", b"{", {})
    for wrong in ("yaml", 7, None):
        with pytest.raises(TypeError, match=r'a codec is "json" or "msgpack", a toymq.Codec or a function, not '):
            encoded(wrong, 1, None)  # type: ignore[arg-type]


def test_values_are_items_of_pub_many() -> None:
    items = values(iter([1, {"a": 2}]), headers={"k": "v"})
    headers = {"content-type": "application/json", "k": "v"}
    assert list(items) == [(None, b"1", headers), (None, b'{"a":2}', headers)]
    with pytest.raises(TypeError, match="the value is of type object"):
        next(values([object()]))
