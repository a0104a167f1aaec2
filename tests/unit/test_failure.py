"""The reason of a NACK: hostile texts become bounded and printable. Contract: protocol.md, NACK; ADR 0062."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toymq_py.failure import (
    ERROR_BYTES_MAX,
    ERROR_TYPE_BYTES_MAX,
    FAILURE_BYTES_MAX,
    REASON_BYTES_MAX,
    Failure,
    decode_text,
    encode_text,
    encoded_len,
    failure_of,
)
from toymq_py.protocol import Nack, encode_command

texts = st.none() | st.text() | st.text(st.sampled_from("ab \n\r\t\x00\x1b\x9b%\u2028\u202e\ud800é😀"), max_size=9000)


@given(texts, texts, texts, texts)
def test_whatever_the_texts_they_are_bounded_and_printable_and_stay_so(
    reason: str | None, error_type: str | None, error: str | None, traceback: str | None
) -> None:
    failure = failure_of(reason, error_type, error, traceback)
    if failure is None:
        return
    made = (failure.reason, failure.error_type, failure.error, failure.traceback)
    limits = (REASON_BYTES_MAX, ERROR_TYPE_BYTES_MAX, ERROR_BYTES_MAX, FAILURE_BYTES_MAX)
    assert all(text is None or 0 < encoded_len(text) <= most for text, most in zip(made, limits, strict=True))
    assert sum(encoded_len(text) for text in made if text is not None) <= FAILURE_BYTES_MAX
    assert all(text is None or text.isprintable() for text in made[:3])
    assert failure.traceback is None or all(line.isprintable() for line in failure.traceback.split("\n"))
    assert failure_of(*made) == failure, "made once, it is what it is"
    assert all(text is None or decode_text(encode_text(text)) == text for text in made)


def test_it_fits_into_a_header_line_beside_the_longest_names() -> None:
    failure = failure_of("é" * 5000, "T" * 5000, "\n" * 5 + "%" * 5000, "\n".join(f"line {n}" for n in range(999)))
    high = 2**64 - 1
    ids = tuple((high - 3 * n - 1, high - 3 * n) for n in reversed(range(5)))
    line = encode_command(Nack("t" * 196 + ".dlq", "c" * 196, ids, 10 * 366 * 24 * 3600 * 1000, True, failure))
    assert len(line) <= 4096


def test_of_a_text_that_is_too_long_the_beginning_stays_and_of_a_traceback_the_end() -> None:
    failure = failure_of(error="x" * (1 << 20), traceback="\n".join(f"line {n}" for n in range(100_000)))
    assert failure is not None
    assert failure.error is not None
    assert failure.traceback is not None
    assert failure.error == "x" * (ERROR_BYTES_MAX - 3) + "..."
    assert failure.traceback.split("\n")[-1] == "line 99999"
    assert failure.traceback.split("\n")[0].startswith("line ")


@pytest.mark.parametrize("nothing", ["", "   ", "\n", "\x00\x1b", "\u202e"])
def test_what_says_nothing_is_none(nothing: str) -> None:
    assert failure_of(nothing, nothing, nothing, nothing) is None


def test_percent_signs_and_bytes_that_are_no_text() -> None:
    assert encode_text("100 % of é\n") == "100%20%25%20of%20%C3%A9%0A"
    assert decode_text("100%25") == "100%"
    assert decode_text("100%") == "100%"
    assert decode_text("%zz%ff") == "%zz\ufffd"
    assert failure_of(decode_text("a%00%1b]0;title%07%0d%0ab")) == Failure(reason="a  ]0;title   b")
