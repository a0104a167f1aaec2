"""A handler's exception as the texts of a NACK."""

import pytest

from toymq.nack_reason import FRAMES_MAX, describe, is_dead, text_of, traceback_of
from toymq_py.failure import FAILURE_BYTES_MAX
from toymq_py.protocol import HelloReply


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def raised(error: Exception) -> Exception:
    """Return the exception with a traceback."""

    def handler() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        handler()
    return caught.value


def test_an_exception_has_type_text_and_traceback() -> None:
    failure = describe(None, raised(ValueError("bad template")), None, details=True)
    assert failure is not None
    assert (failure.reason, failure.error_type, failure.error) == (None, "ValueError", "bad template")
    assert failure.traceback is not None
    assert "in handler" in failure.traceback


def test_without_details_the_type_is_all() -> None:
    failure = describe("poison", raised(ValueError("a secret")), None, details=False)
    assert failure is not None
    assert (failure.reason, failure.error_type, failure.error, failure.traceback) == ("poison", "ValueError", None, None)


def test_an_exception_without_a_text_or_a_traceback_is_named_by_its_type() -> None:
    failure = describe(Unprintable(), None, None, details=True)
    assert failure is not None
    assert failure.error_type == f"{__name__}.Unprintable"
    assert (failure.error, failure.traceback) == (None, None)


def test_a_text_that_is_no_utf8_is_escaped() -> None:
    error = ValueError("\udcff\ud800 ü")
    assert text_of(error) == r"\udcff\ud800 ü"
    assert traceback_of(error) == r"ValueError: \udcff\ud800 ü"


def test_a_log_shows_the_beginning_and_the_end_of_a_long_exception() -> None:
    text = traceback_of(raised(ValueError("a" * 5_000_000 + "z")))
    assert len(text) < 3 * FAILURE_BYTES_MAX
    assert text.startswith("Traceback (most recent call last):\n")
    assert "in handler" in text
    assert "characters left out ...\na" in text
    assert text.endswith("az")


def test_of_a_deep_recursion_only_the_innermost_frames_are_kept() -> None:
    def sink(depth: int) -> None:
        if depth:
            sink(depth - 1)
        raise KeyError(depth)

    with pytest.raises(KeyError) as caught:
        sink(200)
    failure = describe(None, caught.value, None, details=True)
    assert failure is not None
    assert (failure.traceback or "").count("in sink") <= FRAMES_MAX


def test_an_older_broker_gets_one_line() -> None:
    old = HelloReply(1, "old", 2 << 20)
    assert not old.tells_errors
    failure = describe(None, raised(ValueError("bad template")), old, details=True)
    assert failure is not None
    assert (failure.reason, failure.error_type) == ("ValueError: bad template", None)


def test_dead_letters_have_no_dead_letters() -> None:
    assert is_dead(KeyError("k"), (KeyError, ValueError), "orders")
    assert not is_dead(KeyError("k"), ValueError, "orders")
    assert not is_dead(KeyError("k"), KeyError, "orders.dlq")
