"""Heads of requests; tests/unit/gateway/test_http_server.py sends them to a server."""

import pytest

from toymq_py.errors import BadFraming, LineTooLong, RequestError
from toymq_py.gateway.http_heads import (
    HEAD_BYTES_MAX,
    TARGET_BYTES_MAX,
    asks_for_websocket,
    check_head,
    head_bytes,
    with_host_of_target,
)
from toymq_py.gateway.problems import UnsupportedVersion
from toymq_py.gateway.search_operations import HEADER_CHARS_MAX, TEXT_CHARS_MAX
from toymq_py.names import NAME_BYTES_MAX
from toymq_py.records import KEY_BYTES_MAX

HOST = (b"host", b"localhost")
UPGRADE = [(b"connection", b"keep-alive, Upgrade"), (b"upgrade", b"WebSocket")]


@pytest.mark.parametrize("host", [b"localhost", b"localhost:7800", b"[::1]:7800", b"192.0.2.1", b"a_b.example."])
def test_heads_that_are_served(host: bytes) -> None:
    check_head(b"GET", "1.1", b"/", [(b"host", host)])
    check_head(b"GET", "1.0", b"/", [])
    check_head(b"POST", "1.1", b"/", [HOST, (b"transfer-encoding", b" Chunked")])


@pytest.mark.parametrize(
    ("method", "version", "headers", "error"),
    [
        (b"GET", "0.9", [HOST], UnsupportedVersion),
        (b"GET", "2.0", [HOST], UnsupportedVersion),
        (b"GET", "1.1", [], BadFraming),
        (b"GET", "1.1", [HOST, HOST], BadFraming),
        (b"GET", "1.0", [HOST, HOST], BadFraming),
        (b"GET", "1.1", [(b"host", b"a b")], BadFraming),
        (b"GET", "1.1", [(b"host", b"")], BadFraming),
        (b"GET", "1.0", [(b"host", b"")], BadFraming),
        (b"GET", "1.1", [(b"host", b"a.example:")], BadFraming),
        (b"POST", "1.1", [HOST, (b"transfer-encoding", b"gzip, chunked")], BadFraming),
        (b"POST", "1.0", [HOST, (b"transfer-encoding", b"chunked")], BadFraming),
        (b"CONNECT", "1.1", [HOST], BadFraming),
        (b"GET", "1.1", [HOST, (b"x", bytes(HEAD_BYTES_MAX - 14))], LineTooLong),
    ],
)
def test_heads_that_are_refused(
    method: bytes, version: str, headers: list[tuple[bytes, bytes]], error: type[RequestError]
) -> None:
    with pytest.raises(error):
        check_head(method, version, b"/", headers)


@pytest.mark.parametrize("escape", [b"%", b"%4", b"%g1", b"%%41", b"%u0041"])
def test_an_escape_that_is_none_is_refused(escape: bytes) -> None:
    """Found: 60 KB of invalid percent escapes took 30 ms to decode."""
    for url in (b"/v1/topics/" + escape, b"/v1/topics?pattern=a" + escape):
        with pytest.raises(BadFraming, match="write %25 for a percent sign"):
            check_head(b"GET", "1.1", url, [HOST])
    check_head(b"GET", "1.1", b"/v1/topics/%41%2f?pattern=%25%fF", [HOST])


def test_a_target_with_a_fragment_is_refused() -> None:
    """Found: ``DELETE /v1/topics/two#3``, which Python's http.client sends as it is, deleted the topic ``two``."""
    with pytest.raises(BadFraming, match="write %23 for #"):
        check_head(b"DELETE", "1.1", b"/v1/topics/two#3", [HOST])


def test_the_longest_request_of_the_api_fits_into_a_target() -> None:
    path = len("/v1/topics//messages:search") + 3 * NAME_BYTES_MAX
    texts = 12 * (TEXT_CHARS_MAX + HEADER_CHARS_MAX) + 3 * KEY_BYTES_MAX + len("?text=&header=&key=")
    numbers = len("&since_ms=&until_ms=&id=&before=&max=") + 2 * 16 + 2 * 20 + 4
    assert path + texts + numbers <= TARGET_BYTES_MAX


def test_a_head_may_have_sixty_four_kib() -> None:
    check_head(b"GET", "1.1", b"/", [HOST, (b"x", bytes(HEAD_BYTES_MAX - 15))])


@pytest.mark.parametrize("host", [b"localhost", b"", b"evil.example"])
def test_the_host_of_an_absolute_target_is_the_one_that_counts(host: bytes) -> None:
    """Found: the Host header was checked instead, against RFC 9112, 3.2.2."""
    given = [(b"x", b"1"), (b"host", host)]
    assert with_host_of_target(b"/healthz", given) == with_host_of_target(b"//a/b", given) == given
    assert with_host_of_target(b"*", given) == given
    for url in (b"http://192.0.2.1:80", b"HTTPS://192.0.2.1:80/healthz", b"http://192.0.2.1:80?a=http://b/"):
        assert with_host_of_target(url, given) == [(b"host", b"192.0.2.1:80"), (b"x", b"1")]
    assert with_host_of_target(b"http://a/", []) == [(b"host", b"a")], "HTTP/1.0"


@pytest.mark.parametrize(
    "url", [b"ftp://a/", b"http:///healthz", b"http://", b"http://me@a/", b"http://a:b/", b"healthz", b"a:80", b"http:a", b"**"]
)
def test_a_target_that_is_no_path_and_has_no_host_is_refused(url: bytes) -> None:
    with pytest.raises(BadFraming, match="invalid request target: send a path, /healthz, or a URL with a host"):
        with_host_of_target(url, [HOST])


def test_who_asks_for_a_websocket() -> None:
    assert asks_for_websocket(b"GET", "1.1", [HOST, *UPGRADE])
    for method, version, headers in (
        (b"POST", "1.1", UPGRADE), (b"GET", "1.0", UPGRADE), (b"GET", "1.1", UPGRADE[:1]), (b"GET", "1.1", UPGRADE[1:]),
        (b"GET", "1.1", [*UPGRADE, (b"upgrade", b"h2c")]),
    ):  # fmt: skip
        assert not asks_for_websocket(method, version, [HOST, *headers])
    with pytest.raises(BadFraming, match="body"):
        asks_for_websocket(b"GET", "1.1", [*UPGRADE, (b"content-length", b"0")])


def test_a_head_is_written_again() -> None:
    head = [HOST, *UPGRADE]
    whole = b"GET /a?b HTTP/1.1\r\nhost: localhost\r\nconnection: keep-alive, Upgrade\r\nupgrade: WebSocket\r\n\r\n"
    assert head_bytes(b"GET", "1.1", b"/a?b", head, upgrade=True) == whole
    assert head_bytes(b"GET", "1.1", b"/a?b", head, upgrade=False) == whole.replace(b"upgrade: WebSocket\r\n", b"")
