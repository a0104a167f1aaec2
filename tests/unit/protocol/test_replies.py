"""Encoded replies: runs of OK, errors of one line, and MSG frames that are the same whichever way they are encoded."""

import pytest

from toymq_py.errors import REQUEST_ERRORS, BadArgument
from toymq_py.protocol import ClientConnection, ErrReply, encode_error, encode_messages, encode_ok, encode_ok_run
from toymq_py.protocol.frames import LINE_BYTES_MAX
from toymq_py.protocol.replies import ALIKE_MIN
from toymq_py.records import Records


@pytest.mark.parametrize("first_id", [0, 7, 998, 999, 1000, 12_345, 999_990])
@pytest.mark.parametrize("count", [1, 2, 15, 2500])
def test_a_run_of_oks_is_an_ok_for_each_id(first_id: int, count: int) -> None:
    assert encode_ok_run(first_id, count) == b"".join(encode_ok(first_id + n) for n in range(count))


@pytest.mark.parametrize("text", ["plain", "two\nlines\r\n", "\u202e\xfc\x00", "x" * 5000])
def test_an_error_is_one_printable_line(text: str) -> None:
    line = encode_error(BadArgument(text))
    assert line.startswith(b"ERR BAD_ARGUMENT ")
    assert line.endswith(b"\n")
    assert len(line) <= LINE_BYTES_MAX
    assert line[:-1].decode("ascii").isprintable()


@pytest.mark.parametrize("code", REQUEST_ERRORS)
def test_a_code_becomes_its_exception(code: str) -> None:
    error = ErrReply(code, "7 text").to_exception()
    assert type(error) is REQUEST_ERRORS[code]
    assert str(error) == "7 text"


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("first_id", [0, 990, 5_000, 99_995])
@pytest.mark.parametrize("times", [1, 2])
def test_frames_of_alike_messages_are_those_of_each_alone(first_id: int, step: int, times: int) -> None:
    rows = 3 * ALIKE_MIN
    ids = range(first_id, first_id + rows * step, step)
    run = Records(ids, [1000 + n % times for n in range(rows)], [b"k%02d" % n for n in range(rows)], [b"body"] * rows)
    frames = encode_messages("t", run, 2)
    one_by_one = b"".join(
        encode_messages("t", Records([run.ids[n]], [run.ts_ns[n]], [run.keys[n]], [run.payloads[n]]), 2).pieces[0]
        for n in range(rows)
    )
    assert b"".join(frames.pieces) == one_by_one
    assert sum(frames.sizes()) == len(one_by_one)
    part = b"".join(frames.part(5, 9).pieces)
    client = ClientConnection()
    client.receive_data(part)
    assert [reply.msg_id for reply in client.next_replies()] == list(ids[5:9])  # type: ignore[union-attr]
