"""Request lines as they are sent, in any pieces. Contract: RFC 9112, 2.2 and 3; tests/unit/gateway/test_http_server.py has
empty lines ahead of them."""

import random

import pytest

from tests.support.http_exchange import exchange, problem_of
from tests.support.http_rig import listening
from tests.support.sim_disk import SimDisk
from toymq_py.errors import BadFraming
from toymq_py.gateway.http_request_line import RequestLine

REST = b"Host: localhost\r\nConnection: close\r\n\r\n"


def request(line: bytes) -> bytes:
    return line + b"\r\n" + REST


@pytest.mark.parametrize("line", [
    b"GET  /healthz HTTP/1.1", b"GET /healthz  HTTP/1.1", b"GET   /healthz HTTP/1.1", b"GET\t/healthz HTTP/1.1",
    b"GET /healthz\tHTTP/1.1", b"GET /healthz HTTP/1.1 ", b"GET /healthz HTTP/1.1\t", b" GET /healthz HTTP/1.1",
    b"\tGET /healthz HTTP/1.1", b"\r\n GET /healthz HTTP/1.1", b"GET \t/healthz HTTP/1.1", b"GET /healthz \tHTTP/1.1",
])  # fmt: skip
async def test_a_single_space_separates_the_parts_of_a_request_line(line: bytes) -> None:
    """Found by an attack: two spaces were served, and a proxy ahead may read such a line in another way."""
    async with listening("/data/d", fs=SimDisk(random.Random(1))) as rig:
        assert problem_of(await exchange(rig.port, request(line))) == (400, "BAD_FRAMING")


def test_the_line_is_checked_in_whatever_pieces_it_comes() -> None:
    whole = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
    for sent, is_good in ((whole, True), (whole.replace(b" /a", b"  /a"), False)):
        for cut in range(1, len(sent)):
            line = RequestLine()
            line.feed(sent[:cut], in_head=True)
            line.begin()
            line.feed(sent[cut:], in_head=True)
            if is_good:
                line.check(b"GET", b"/a", "1.1")
            else:
                with pytest.raises(BadFraming):
                    line.check(b"GET", b"/a", "1.1")


def test_a_request_behind_another_one_or_a_body_is_checked_too() -> None:
    line = RequestLine()
    line.feed(b"GET /a HTTP/1.1\r\n\r\nGET  /b HTTP/1.1\r\n\r\n", in_head=True)
    line.begin()
    line.check(b"GET", b"/a", "1.1")
    line.end()
    line.begin()
    with pytest.raises(BadFraming):
        line.check(b"GET", b"/b", "1.1")
    line.feed(b"the end of a body" + b"GET /c HTTP/1.1\r\n", in_head=False)
    line.check(b"GET", b"/c", "1.1")
