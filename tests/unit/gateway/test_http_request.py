"""Headers of a request, looked up."""

import pytest

from toymq_py.gateway.http_request import Fields, HttpRequest

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
