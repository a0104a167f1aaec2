"""Log lines never stop the broker."""

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import pytest

from toymq_py.cli import logs

logger = logging.getLogger("toymq_py.test")


@contextmanager
def stderr_is_a_pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[TextIO]:
    """Its reading end; the root logger is put back afterwards."""
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
        with logs.to_stderr("info"):
            logger.debug("not this")
            logger.warning("the %s", "message")
        line = pipe.readline()
    assert line.endswith(" WARNING toymq_py.test: the message\n")
    assert line.startswith("20")


def test_a_reader_that_does_not_read_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe holds 64 KiB; whoever writes more to it waits."""
    with stderr_is_a_pipe(monkeypatch) as pipe, logs.to_stderr("info"):
        for number in range(logs.LINES_MAX + 5000):
            logger.info("%d %s", number, "x" * 100)
        taken = 0
        while "were dropped: nobody took them" not in pipe.readline():
            taken += 1
    assert logs.LINES_MAX <= taken < logs.LINES_MAX + 5000


def test_the_end_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    with stderr_is_a_pipe(monkeypatch) as pipe:
        monkeypatch.setattr(logs, "FAREWELL_S", 0.01)
        with logs.to_stderr("info"):
            for _ in range(2000):
                logger.info("x" * 100)
        assert sum("x" in pipe.readline() for _ in range(2000)) == 2000, "later they are all there"
