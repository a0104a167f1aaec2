"""Looking up headers of a request."""

import pytest

from toymq_py.errors import BadArgument
from toymq_py.gateway.app import OPERATIONS
from toymq_py.gateway.http_request import QUERY_FIELDS_MAX, Fields, HttpRequest, query_of

RAW = [(b"host", b"a"), (b"x-delay-ms", b"5"), (b"host", b"b"), (b"name", b"\xe4")]


@pytest.mark.parametrize("raw", [RAW, tuple(RAW)])
def test_fields_are_found_as_starlettes_are(raw: list[tuple[bytes, bytes]]) -> None:
    fields = Fields(raw)
    assert (fields.get("Host"), fields["host"], fields.getlist("HOST")) == ("a", "a", ["a", "b"])
    assert (fields.get("X-Delay-Ms"), fields.get("name"), fields.get("none"), fields.get("none", "x")) == ("5", "ä", None, "x")
    assert ("X-Delay-Ms" in fields, "none" in fields, fields.getlist("none")) == (True, False, [])
    assert (len(fields), fields.keys(), fields.raw) == (4, ["host", "x-delay-ms", "host", "name"], RAW)
    with pytest.raises(KeyError):
        fields["none"]


def test_a_request_has_them() -> None:
    request = HttpRequest({"type": "http", "headers": RAW})
    assert request.headers.get("x-delay-ms") == "5"
    assert request.headers is request.headers, "made once"


@pytest.mark.parametrize("field", [b"a", b"a=b", b""])
def test_the_fields_of_a_query_are_counted_before_they_are_parsed(field: bytes) -> None:
    request = HttpRequest({"type": "http", "headers": [], "query_string": b"&".join([field] * (QUERY_FIELDS_MAX + 1))})
    with pytest.raises(BadArgument, match=f"at most {QUERY_FIELDS_MAX} are accepted"):
        _ = request.query_params
    assert query_of({"query_string": b"&".join([field] * QUERY_FIELDS_MAX)}).getlist("a") == [
        value for value in ["b" if b"=" in field else ""] * QUERY_FIELDS_MAX if field
    ]


def test_a_query_is_parsed_once() -> None:
    request = HttpRequest({"type": "http", "headers": [], "query_string": b"a=%41&b="})
    assert dict(request.query_params) == {"a": "A", "b": ""}
    assert request.query_params is request.query_params


def test_all_parameters_of_an_operation_fit_into_a_query() -> None:
    assert max(len(operation.parameters) for operation in OPERATIONS) * 2 <= QUERY_FIELDS_MAX
