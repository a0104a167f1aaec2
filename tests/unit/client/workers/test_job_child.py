"""The code that runs in a job process, without the process itself (tests/e2e/workers/test_job_process.py)."""

import logging

import pytest

from toymq import App
from toymq.workers.job_child import Said, answer, find, raised
from toymq.workers.job_messages import Done, LogLine, Place, Raised, Refused, Request
from toymq_py.errors import ConfigError

app = App()


@app.worker("first", executor="process")
def work(number: int) -> int:
    return 6 // number


first = work


@App().worker("second", executor="process")
def work(number: int) -> int:  # type: ignore[no-redef]  # a mistake that is made
    return number


def bare(number: int) -> int:
    return number


def request(payload: bytes, *, wanted: bool = True) -> Request:
    return Request("t", 7, 1, 5, b"", b"", payload, wanted=wanted)


def test_a_function_is_found_by_its_name() -> None:
    assert find(Place(__name__, "work", "second")) is work
    assert find(Place(__name__, "bare", "t")).arguments_of  # a job is made of it
    with pytest.raises(ConfigError, match="has no nothing when another process imports it"):
        find(Place(__name__, "nothing", "t"))


def test_the_second_of_two_functions_of_a_name_is_not_taken_for_the_first() -> None:
    with pytest.raises(ConfigError, match="the worker of second, not of first: two functions of the module have this name"):
        find(Place(__name__, "work", "first"))


def test_an_answer_says_what_came_of_a_request() -> None:
    assert answer(first, request(b'{"number":2}')) == Done(b'{"result": 3}')
    assert answer(first, request(b'{"number":2}', wanted=False)) == Done(None)
    refused = answer(first, request(b'{"number":"x"}'))
    assert isinstance(refused, Refused)
    assert "is a whole number, not 'x'" in refused.text
    failed = answer(first, request(b'{"number":0}'))
    assert isinstance(failed, Raised)
    assert failed.kinds[:2] == (("builtins", "ZeroDivisionError"), ("builtins", "ArithmeticError"))
    assert failed.traceback.splitlines()[1].endswith(", in work"), "none of our own lines"


def test_an_exception_whose_text_cannot_be_made_is_told_by_its_class() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    assert raised(Odd()).text == ""


def test_an_exception_whose_text_is_no_utf8_crosses_escaped() -> None:
    found = raised(ValueError("\udcff\ud800"))
    assert (found.text, found.traceback) == (r"\udcff\ud800", "ValueError: \\udcff\\ud800\n")
    assert raised(type("E", (Exception,), {"__qualname__": "E\ud800"})()).kinds[0] == (__name__, r"E\ud800")


class Kept:
    """Stands for the connection to the parent, and keeps what is sent."""

    def __init__(self) -> None:
        self.said: list[LogLine] = []

    def send(self, what: LogLine) -> None:
        self.said.append(what)


def test_a_log_line_becomes_texts_and_numbers() -> None:
    kept = Kept()
    logger = logging.getLogger("test_job_child")
    handler = Said(kept)  # type: ignore[arg-type]
    logger.addHandler(handler)
    logger.warning("%s costs %d", "tea", 3, extra={"items": ("a", 1), "odd": ValueError("x")})
    logger.removeHandler(handler)
    (line,) = kept.said
    made = vars(logging.makeLogRecord(line.fields))
    assert (made["msg"], made["args"], made["items"], made["odd"]) == ("tea costs 3", None, ["a", 1], "ValueError('x')")
