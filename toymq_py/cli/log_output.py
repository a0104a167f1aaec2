"""What the broker says on stderr: text or JSON, one line each, a level per subsystem, repeats counted instead of said.

Lines leave the broker on a thread of their own. A pipe whose reader does not read blocks whoever writes to it. That must not be
the event loop: the broker once stood still, with all messages, for the sake of a log line.
"""

import json
import logging
import logging.handlers
import queue
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from copy import copy
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from math import inf
from typing import Any, Literal

from toymq_py.clock import SystemClock
from toymq_py.config.options import SUBSYSTEMS, LogFormat, parse_log_levels
from toymq_py.threads import start_thread

LINES_MAX = 10_000
"""So many lines wait for a reader that is slow; what comes beyond is dropped and counted."""
FAREWELL_S = 1.0
"""How long the end of the process waits for the last lines to be taken."""
WINDOW_S = 10.0
"""Repeats are counted over so long."""
SAME_MAX = 5
"""The same line, word for word, is said so often in a window."""
ALIKE_MAX = 200
"""Lines from one place in the source that differ in their facts: whoever makes us log must not fill the disk with it."""
TOLD_APART_MAX = 2000
"""Kinds of lines that are counted at once; with more the oldest is forgotten, and told."""
TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
FIELDS = ("session", "trace_id", "span_id", "audit")
"""What a line may carry beside its message, with ``extra=``."""
IN_TEXT = ("trace_id", "span_id")
"""Those that the message of a line of text does not have already."""


class TextFormatter(logging.Formatter):
    """One line, whatever the message or a traceback holds: a newline in a client's name begins no line of the log."""

    def __init__(self) -> None:
        super().__init__(TEXT)

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        line += "".join(f" {name}={value}" for name, value in _fields(record) if name in IN_TEXT)
        return line.replace("\n", "\\n").replace("\r", "\\r")


class JsonFormatter(logging.Formatter):
    """One object a line: ``ts`` (UTC), ``level``, ``logger``, ``message``; ``session``, ``trace_id``, ``span_id``,
    ``audit``, ``exception`` where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        row: dict[str, Any] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **dict(_fields(record)),
        }
        if record.exc_info:
            row["exception"] = self.formatException(record.exc_info)
        elif record.exc_text:
            row["exception"] = record.exc_text
        return json.dumps(row, default=str)


def _fields(record: logging.LogRecord) -> Iterator[tuple[str, object]]:
    for name in FIELDS:
        value = getattr(record, name, None)
        if value is not None:
            yield name, value


@dataclass(slots=True)
class _Count:
    began_s: float
    said: int
    suppressed: int
    last: logging.LogRecord


class Repeats:
    """Which lines are said. Those that repeat are counted, and the count is said when their window is over. Debug lines are
    never held back: debugging wants them all; nor are those with ``extra={"every": True}``, what an audit has done."""

    def __init__(self) -> None:
        self.untold = 0
        """Kinds of which something was suppressed, and that is not said yet."""
        self._counts: dict[tuple[str, str], _Count] = {}

    def said(self, record: logging.LogRecord) -> list[logging.LogRecord]:
        """Records to write now: those that are overdue, and the new one unless it repeats."""
        if record.levelno <= logging.DEBUG or getattr(record, "every", False):
            return [record]
        out = self.overdue(record.created)
        place = f"{record.pathname}:{record.lineno}"
        if self._allows((record.name, record.getMessage()), SAME_MAX, record) and self._allows(
            (record.name, place), ALIKE_MAX, record
        ):
            out.append(record)
        return out

    def _allows(self, kind: tuple[str, str], limit: int, record: logging.LogRecord) -> bool:
        count = self._counts.get(kind)
        if count is None:
            self._counts[kind] = _Count(record.created, 1, 0, record)
            return True
        if count.said < limit:
            count.said += 1
            return True
        self.untold += not count.suppressed
        count.suppressed += 1
        count.last = record
        return False

    def overdue(self, now: float) -> list[logging.LogRecord]:
        """The counts of windows that are over at ``now``, in seconds of ``LogRecord.created``."""
        over: list[tuple[str, str]] = []
        for kind, count in self._counts.items():  # by age: the first that is young enough ends it
            if now - count.began_s < WINDOW_S and len(self._counts) - len(over) <= TOLD_APART_MAX:
                break
            over.append(kind)
        counts = [count for count in map(self._counts.pop, over) if count.suppressed]
        self.untold -= len(counts)
        return [_summary(count) for count in counts]


def _summary(count: _Count) -> logging.LogRecord:
    record = copy(count.last)
    record.msg = f"{record.getMessage()} ({count.suppressed} more like it were suppressed)"
    record.args = None
    record.exc_info = record.exc_text = None
    return record


class _Wake(Enum):
    """In the queue: something was suppressed, and is to be told when its window is over."""

    WAKE = "wake"


_WAKE = _Wake.WAKE
Line = logging.LogRecord | Literal[_Wake.WAKE]


class _Outbox(logging.handlers.QueueHandler):
    """Never waits."""

    def __init__(self, lines: "queue.Queue[Line | None]") -> None:
        super().__init__(lines)
        self.dropped = 0
        self.repeats = Repeats()

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """The message is made here: its arguments may change until the thread sees it. The traceback is left to the
        formatter."""
        record = copy(record)
        record.msg, record.args = record.getMessage(), None
        if record.exc_info:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
            record.exc_info = None
        return record

    def enqueue(self, record: logging.LogRecord) -> None:
        untold = self.repeats.untold
        for one in self.repeats.said(record):
            self._put(one)
        if self.repeats.untold > untold == 0:
            self._put(_WAKE)

    def _put(self, line: Line) -> None:
        try:
            self.queue.put_nowait(line)
        except queue.Full:
            self.dropped += line is not _WAKE

    def overdue(self, now: float) -> list[logging.LogRecord]:
        """Lines of ``Repeats`` that are overdue, for the thread that writes."""
        with self.lock or nullcontext():
            return self.repeats.overdue(now)


@contextmanager
def to_stderr(levels: str, form: LogFormat = "text") -> Iterator[None]:
    """Log to stderr as long as this lasts. ``levels``: as of ``--log-level``."""
    lines: queue.Queue[Line | None] = queue.Queue(LINES_MAX)
    outbox = _Outbox(lines)
    writer = logging.StreamHandler(sys.stderr)
    writer.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.raiseExceptions = False  # an unwritable stderr stops nothing

    clock = SystemClock()

    def write() -> None:
        while True:
            try:
                line = lines.get(timeout=WINDOW_S if outbox.repeats.untold else None)
            except queue.Empty:
                line = _WAKE
            if line is None or line is _WAKE:
                for overdue in outbox.overdue(inf if line is None else clock.wall_ns() / 1e9):
                    writer.handle(overdue)
                if line is None:
                    return
                continue
            writer.handle(line)
            if outbox.dropped and lines.empty():
                dropped, outbox.dropped = outbox.dropped, 0
                logging.getLogger("toymq_py.logs").warning("%d log lines were dropped: stderr was not read", dropped)

    thread = start_thread(write, "toymq-log")
    root = logging.getLogger()
    before = {logger: logger.level for logger in (root, *map(_logger, SUBSYSTEMS))}
    set_levels(levels)
    root.addHandler(outbox)
    try:
        yield
    finally:
        root.removeHandler(outbox)
        with suppress(queue.Full):
            lines.put(None, timeout=FAREWELL_S)
        thread.join(FAREWELL_S)
        for logger, level in before.items():
            logger.setLevel(level)


def set_levels(text: str) -> None:
    """Levels from now on, as of ``--log-level``; also while the broker runs. Raises: ConfigError."""
    levels = parse_log_levels(text)
    logging.getLogger().setLevel(levels.default.upper())
    for subsystem in SUBSYSTEMS:
        _logger(subsystem).setLevel(levels.of(subsystem).upper())


def _logger(subsystem: str) -> logging.Logger:
    return logging.getLogger(f"toymq_py.{subsystem}")
