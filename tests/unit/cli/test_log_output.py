"""Log lines: their form and levels, suppressed repeats, and that logging never blocks the broker."""

import json
import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from typing import TextIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.broker_process import ROOT
from tests.support.fake_clock import FakeClock
from toymq_py.cli import log_output
from toymq_py.config.options import SUBSYSTEMS, parse_log_levels
from toymq_py.errors import ConfigError

logger = logging.getLogger("toymq_py.test")
PATH = "x.py"


@contextmanager
def stderr_is_a_pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[TextIO]:
    """Make stderr a pipe. Yields: its reading end; afterwards the root logger is restored."""
    read, write = os.pipe()
    level, raising = logging.root.level, logging.raiseExceptions
    with os.fdopen(read) as reader, os.fdopen(write, "w") as writer:
        monkeypatch.setattr(sys, "stderr", writer)
        yield reader
        monkeypatch.undo()
    logging.root.setLevel(level)
    logging.raiseExceptions = raising


def test_a_line_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with stderr_is_a_pipe(monkeypatch) as pipe:
        with log_output.to_stderr("info"):
            logger.debug("not this")
            logger.warning("the %s", "message")
        line = pipe.readline()
    assert line.endswith(" WARNING toymq_py.test: the message\n")
    assert line.startswith("20")


def test_a_reader_that_does_not_read_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe holds 64 KiB; a process that writes more to it blocks."""
    monkeypatch.setattr(log_output, "ALIKE_MAX", 1 << 30)
    with stderr_is_a_pipe(monkeypatch) as pipe, log_output.to_stderr("info"):
        for number in range(log_output.LINES_MAX + 5000):
            logger.info("%d %s", number, "x" * 100)
        taken = 0
        while "were dropped: stderr was not read" not in pipe.readline():
            taken += 1
    assert log_output.LINES_MAX <= taken < log_output.LINES_MAX + 5000


def test_the_end_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    with stderr_is_a_pipe(monkeypatch) as pipe:
        monkeypatch.setattr(log_output, "FAREWELL_S", 0.01)
        monkeypatch.setattr(log_output, "ALIKE_MAX", 1 << 30)
        with log_output.to_stderr("info"):
            for number in range(2000):
                logger.info("%d %s", number, "x" * 100)
        assert sum("x" in pipe.readline() for _ in range(2000)) == 2000, "later they are all there"


def log_a_failure() -> None:
    try:
        [].pop()
    except IndexError:
        logger.exception("failed")


def record(text: str, at_s: float, line: int = 1, level: int = logging.INFO, **extra: object) -> logging.LogRecord:
    made = logging.LogRecord("toymq_py.test", level, PATH, line, text, None, None)
    made.created = at_s
    vars(made).update(extra)
    return made


def test_one_line_whatever_it_holds() -> None:
    """A client's name with a line break cannot forge a line."""
    text = log_output.TextFormatter().format(record("a\n2026-11-21 forged\r", 0.0, trace_id="t", session=5))
    assert text.endswith(" INFO toymq_py.test: a\\n2026-11-21 forged\\r trace_id=t")


def test_json_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    with stderr_is_a_pipe(monkeypatch) as pipe:
        with log_output.to_stderr("info", "json"):
            logger.warning("the %s\n", "message", extra={"session": 5, "trace_id": "4bf9", "span_id": "00f0"})
            log_a_failure()
        first, second = (json.loads(pipe.readline()) for _ in range(2))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first.pop("ts"))
    assert first == {
        "level": "warning", "logger": "toymq_py.test", "message": "the message\n", "session": 5, "trace_id": "4bf9",
        "span_id": "00f0",
    }  # fmt: skip
    assert second["message"] == "failed"
    assert second["exception"].startswith("Traceback (most recent call last):\n")
    assert second["exception"].endswith("IndexError: pop from empty list")


def test_a_traceback_is_below_its_line_of_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by a trial: it was one line with `\\n` in it, which only a program reads."""
    with stderr_is_a_pipe(monkeypatch) as pipe:
        with log_output.to_stderr("info"):
            log_a_failure()
            logger.info("next")
        text = "".join(iter(lambda: "" if (line := pipe.readline()).endswith("next\n") else line, ""))
    first, *lines = text.splitlines()
    assert first.endswith(" toymq_py.test: failed")
    assert (lines[0], lines[-1]) == ("    Traceback (most recent call last):", "    IndexError: pop from empty list")


def test_an_exception_begins_no_line() -> None:
    failed = record("failed", 0.0)
    failed.exc_text = "Traceback\nValueError: a\n2026-11-21 forged\r"
    assert log_output.TextFormatter().format(failed).splitlines()[1:] == [
        "    Traceback", "    ValueError: a", "    2026-11-21 forged\\r"]  # fmt: skip


@dataclass
class Written:
    """A suppressor of repeated lines with a clock that the test moves, and the lines that it writes."""

    clock: FakeClock = field(default_factory=FakeClock)
    rows: list[tuple[float, int, str]] = field(default_factory=list)
    """Seconds, place, text."""

    def __post_init__(self) -> None:
        self.repeats = log_output.Repeats(self.clock)

    def log(self, text: str, *, place: int = 1, level: int = logging.INFO) -> list[str]:
        return self._write(self.repeats.said(record(text, self.clock.wall_ns() / 1e9, line=place, level=level)))

    def tell(self, *, at_the_end: bool = False) -> list[str]:
        return self._write(self.repeats.overdue(inf if at_the_end else self.clock.monotonic()))

    def _write(self, records: list[logging.LogRecord]) -> list[str]:
        texts = [one.getMessage() for one in records]
        self.rows += [(self.clock.monotonic(), one.lineno, text) for one, text in zip(records, texts, strict=True)]
        return texts


@pytest.fixture
def written() -> Written:
    return Written()


def test_a_line_that_repeats_is_counted_instead(written: Written) -> None:
    said = [written.log("accept failed") for _ in range(100)]
    assert said[: log_output.SAME_MAX] == [["accept failed"]] * log_output.SAME_MAX
    assert said[log_output.SAME_MAX :] == [[]] * (100 - log_output.SAME_MAX)
    assert written.log("another", place=2) == ["another"], "other lines are said"
    written.clock.advance(log_output.WINDOW_S - 0.1)
    assert written.tell() == []
    written.clock.advance(0.1)
    assert written.log("accept failed") == [
        f"accept failed ({100 - log_output.SAME_MAX} more like it were suppressed)", "accept failed",
    ]  # fmt: skip
    assert written.repeats.untold == 0


def test_lines_from_one_place_have_a_bound(written: Written) -> None:
    """Each line names another session, so no two are the same."""
    said = [text for number in range(60_000) for text in written.log(f"session {number} ended by a bug")]
    assert said == [f"session {number} ended by a bug" for number in range(log_output.ALIKE_MAX)]
    written.clock.advance(log_output.WINDOW_S)
    assert written.tell() == [
        f"session 59999 ended by a bug ({60_000 - log_output.ALIKE_MAX} more like it were suppressed)"
    ]
    assert written.tell() == [], "told once"


def test_a_wall_clock_that_is_set_back_suppresses_nothing(written: Written) -> None:
    for _ in range(100):
        written.log("accept failed")
    written.clock.jump_wall(-86_400)
    written.clock.advance(log_output.WINDOW_S)
    assert written.log("accept failed")[-1] == "accept failed"


def test_debug_lines_are_never_held_back_and_memory_is_bounded(written: Written) -> None:
    assert all(written.log("<", level=logging.DEBUG) for _ in range(1000))
    for number in range(50_000):
        written.log(str(number))
        written.clock.advance(0.002)
    assert len(written.repeats._texts) <= log_output.ALIKE_MAX


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from((0.0, 0.0, 0.0, 0.25, 1.0, 4.0, 9.75, 10.0, 30.0)), st.integers(1, 2),
            st.one_of(st.sampled_from("abc"), st.integers(0, 10_000).map(str), st.none()), st.integers(1, 12),
        )
    )
)  # fmt: skip
def test_no_ten_seconds_have_more_than_was_promised(steps: list[tuple[float, int, str | None, int]]) -> None:
    """Found by a trial: after 2,000 different lines the count began again, so a flood of refusals filled the disk."""
    written, logged = Written(), 0
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(log_output, "SAME_MAX", 2)
        patched.setattr(log_output, "ALIKE_MAX", 5)
        for pause_s, place, text, times in steps:
            written.clock.advance(pause_s)
            if text is None:
                written.tell()
                continue
            for _ in range(times):
                written.log(text, place=place)
            logged += times
    rows = list(written.rows)
    for end_s, place, text in rows:
        lately = [(p, t) for at_s, p, t in rows if end_s - log_output.WINDOW_S < at_s <= end_s]
        assert [p for p, _ in lately].count(place) <= 5
        assert [t for _, t in lately].count(text) <= 2 or "suppressed" in text
    written.tell(at_the_end=True)
    told = [int(found[1]) if (found := re.search(r"\((\d+) more", text)) else 1 for _, _, text in written.rows]
    assert sum(told) == logged, "what is not written is counted"


def test_the_count_is_said_when_nothing_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writing thread prints the number of suppressed repeats when their window ends, without another line."""
    monkeypatch.setattr(log_output, "WINDOW_S", 1.0)
    with stderr_is_a_pipe(monkeypatch) as pipe, log_output.to_stderr("info"):
        for _ in range(log_output.SAME_MAX + 1):
            logger.handle(record("again", at_s=0.0))
        lines = [pipe.readline() for _ in range(log_output.SAME_MAX + 1)]
    assert all(line.endswith("again\n") for line in lines[:-1])
    assert lines[-1].endswith("again (1 more like it were suppressed)\n")


def test_levels_by_subsystem() -> None:
    levels = parse_log_levels("warning,session=debug, storage=error")
    assert (levels.default, levels.of("session"), levels.of("storage"), levels.of("broker")) == (
        "warning", "debug", "error", "warning",
    )  # fmt: skip
    assert parse_log_levels("debug").of("wire") == "info", "a line for every frame: only by name"
    assert parse_log_levels("wire=debug").of("wire") == "debug"
    assert parse_log_levels("wire=debug").default == "info"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("loud", "'loud' is not a level: debug, info, warning, error"),
        ("", "'' is not a level"),
        ("info,sesion=debug", "'sesion' is not a subsystem; did you mean session?"),
        ("info,gui=debug", "'gui' is not a subsystem; there are acceptor, "),
        ("info,debug", "'debug' has no subsystem: write info,session=debug"),
        ("session=", "'' is not a level"),
        ("=debug", "'' is not a subsystem"),
    ],
)
def test_levels_that_make_no_sense_are_named(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_log_levels(text)
    assert says in str(caught.value)


def test_every_logger_of_the_broker_is_a_subsystem() -> None:
    names = set()
    for path in (ROOT / "toymq_py").rglob("*.py"):
        names |= set(re.findall(r'getLogger\("toymq_py\.(\w+)"\)', path.read_text()))
    assert {"session", "storage", "wire"} <= names
    assert names <= set(SUBSYSTEMS), "add it to SUBSYSTEMS"


def test_levels_are_set_and_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    session, wire = logging.getLogger("toymq_py.session"), logging.getLogger("toymq_py.wire")
    before = session.level
    with stderr_is_a_pipe(monkeypatch), log_output.to_stderr("error,session=debug"):
        assert (session.isEnabledFor(logging.DEBUG), wire.isEnabledFor(logging.WARNING)) == (True, False)
        log_output.set_levels("wire=debug")
        assert (session.isEnabledFor(logging.DEBUG), wire.isEnabledFor(logging.DEBUG)) == (False, True)
    assert session.level == before
