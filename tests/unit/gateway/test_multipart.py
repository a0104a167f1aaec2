"""Multipart bodies, against RFC 2046 and a reference parser."""

from email.message import EmailMessage

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toymq_py.errors import BadArgument, BadFraming, LineTooLong
from toymq_py.gateway import multipart
from toymq_py.gateway.http_heads import HEAD_BYTES_MAX
from toymq_py.gateway.multipart import CONTENT_TYPE_CHARS_MAX, parse_boundary, parse_multipart

TYPE = "multipart/mixed; boundary=x"


async def no_pause() -> None:
    pass


async def parse(body: bytes, parts_max: int = 10, content_type: str = TYPE) -> list[multipart.Part]:
    return await parse_multipart(content_type, [body], parts_max, no_pause)


PIECES = st.sampled_from([b"\r\n", b"--x", b"--", b"\r", b"\n", b"x", b"a", b"\x00\xff", b"\r\n--xy"])


def has_no_delimiter(content: bytes) -> bool:
    whole = b"\r\n" + content + b"\r\n"
    return b"\r\n--x\r\n" not in whole and b"\r\n--x--" not in whole


CONTENT = st.lists(PIECES, max_size=8).map(b"".join).filter(has_no_delimiter)


@given(st.lists(CONTENT, max_size=4), st.lists(st.integers(1, 40), max_size=4))
async def test_content_comes_back_byte_for_byte_however_the_body_arrived(contents: list[bytes], cuts: list[int]) -> None:
    parts = [b"\r\n--x\r\nN: %d\r\n\r\n%b" % pair for pair in enumerate(contents)]
    body = b"".join((b"preamble", *parts, b"\r\n--x--\r\nepilogue")) if parts else b"--x--"
    pieces = []
    for cut in cuts:
        pieces.append(body[:cut])
        body = body[cut:]
    found = await parse_multipart(TYPE, [*pieces, body], 10, no_pause)
    assert found == [({"n": b"%d" % n}, content) for n, content in enumerate(contents)]


async def test_what_the_standard_library_writes_is_read() -> None:
    message = EmailMessage()
    message.make_mixed()
    for payload in (b"\x00\r\n\xff", b"plain"):
        message.add_attachment(payload, maintype="application", subtype="octet-stream", cte="8bit")
    head, _, body = message.as_bytes(policy=message.policy.clone(linesep="\r\n", cte_type="8bit")).partition(b"\r\n\r\n")
    content_type = next(line for line in head.decode().split("\r\n") if line.startswith("Content-Type: "))
    parts = await parse(body, content_type=content_type.removeprefix("Content-Type: "))
    assert [headers["content-type"] for headers, _ in parts] == [b"application/octet-stream"] * 2
    assert [content for _, content in parts] == [b"\x00\r\n\xff", b"plain"]


async def test_headers_of_one_name_are_one_list() -> None:
    ((headers, content),) = await parse(b"--x \t\r\nA:  b \r\na:c\r\nB-1: \r\n\r\n\r\n--x--")
    assert (headers, content) == ({"a": b"b , c", "b-1": b""}, b"")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "ends before its last boundary"),
        (b"no boundary", "ends before its last boundary"),
        (b"--x\r\n\r\ncut off", "ends before its last boundary"),
        (b"--x\n\na\n--x--", "ends before its last boundary"),
        (b"--x\r\nno header\r\n\r\na\r\n--x--", r"invalid header b'no header'"),
        (b"--x\r\nA: b\r\n folded\r\n\r\na\r\n--x--", r"invalid header b' folded'"),
        (b"--x\r\nA: b\r\n--x--", "no empty line behind its headers"),
        (b"--x\r\n\r\n--x--", "no empty line behind its headers"),
    ],
)  # fmt: skip
async def test_what_cannot_be_read_is_refused_with_the_reason(body: bytes, said: str) -> None:
    with pytest.raises(BadFraming, match=said):
        await parse(body)


async def test_as_many_parts_as_allowed_and_one_more() -> None:
    body = b"--x\r\n\r\n\r\n" * 3 + b"--x--"
    assert len(await parse(body, 3)) == 3
    with pytest.raises(BadArgument, match="more than 2 messages"):
        await parse(body, 2)


async def test_other_tasks_get_turns_while_many_parts_are_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = 0

    async def pause() -> None:
        nonlocal turns
        turns += 1

    monkeypatch.setattr(multipart, "PARSED_PER_TURN_BYTES", 4 * multipart.PART_COST_BYTES)
    await parse_multipart(TYPE, [b"--x\r\n\r\n\r\n" * 40 + b"--x--"], 100, pause)
    assert turns == 10


async def test_the_headers_of_a_part_have_the_limit_of_a_request_head() -> None:
    """Found: 80,000 header lines of one name took 0.8 s of the loop, a million blocked it for minutes."""
    name = b"a: b\r\n"
    fits = HEAD_BYTES_MAX // len(name)
    (part,) = await parse(b"--x\r\n" + name * fits + b"\r\nhello\r\n--x--")
    assert part == ({"a": b", ".join([b"b"] * fits)}, b"hello")
    for lines in (fits + 2, 2 * fits):
        with pytest.raises(LineTooLong, match="of a part of the multipart body have more than"):
            await parse(b"--x\r\n" + name * lines + b"\r\nhello\r\n--x--")
    with pytest.raises(LineTooLong, match="have more than"):
        await parse(b"--x\r\n" + b"a: " + b"b" * 1_000_000 + b"\r\n--x--")


async def test_other_tasks_get_a_turn_behind_each_part_with_many_headers() -> None:
    turns = 0

    async def pause() -> None:
        nonlocal turns
        turns += 1

    body = (b"--x\r\n" + b"a: b\r\n" * 5_000 + b"\r\n\r\n") * 10 + b"--x--"
    assert len(await parse_multipart("multipart/mixed; boundary=x", [body], 100, pause)) == 10
    assert turns == 10


@pytest.mark.parametrize(
    ("content_type", "boundary"),
    [("multipart/mixed; boundary=x", b"x"), ('multipart/form-data; a=b; BOUNDARY="a b:c"; d=e', b"a b:c"),
     ("multipart/mixed;boundary=--", b"--")],
)  # fmt: skip
def test_the_boundary_is_a_parameter(content_type: str, boundary: bytes) -> None:
    assert parse_boundary(content_type) == boundary


@pytest.mark.parametrize(
    "content_type",
    ["multipart/mixed", "multipart/mixed; boundary=", f"multipart/mixed; boundary={'a' * 71}",
     'multipart/mixed; boundary="a;b"', "multipart/mixed; boundary=\xe9",
     "multipart/mixed; boundary=x;" + "a" * CONTENT_TYPE_CHARS_MAX],
)  # fmt: skip
def test_a_boundary_that_cannot_be_is_refused(content_type: str) -> None:
    with pytest.raises(BadFraming):
        parse_boundary(content_type)
