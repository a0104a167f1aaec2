"""The broker's log on stderr: text or JSON, a level per subsystem, repeated lines counted instead of written.

A thread of its own writes the lines. A write to a pipe blocks while the reader of the pipe does not read, and that must not
block the event loop: the broker once stopped all messages for a log line.
"""

import json
import logging
import logging.handlers
import queue
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from copy import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from itertools import takewhile
from math import inf
from typing import Any, Literal

from toymq_py.clock import Clock, SystemClock
from toymq_py.config.options import SUBSYSTEMS, LogFormat, parse_log_levels
from toymq_py.threads import start_thread

LINES_MAX = 10_000
"""Most lines that wait for a slow reader; further ones are dropped and counted."""
FAREWELL_S = 1.0
"""How long the end of the process waits for a reader to take the last lines."""
WINDOW_S = 10.0
"""The span of time for which ``SAME_MAX`` and ``ALIKE_MAX`` hold."""
SAME_MAX = 5
"""How often the same line is written, word for word."""
ALIKE_MAX = 200
"""Lines from one place in the source that differ in their facts: a client that makes the broker log must not fill the disk."""
INDENT = "    "
"""The indent of a traceback in text."""
TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
FIELDS = ("session", "trace_id", "span_id", "audit", "job", "message_id", "attempt")
"""What a line may carry beside its message, with ``extra=``."""
IN_TEXT = ("trace_id", "span_id")
"""Fields that the message of a line of text does not have already."""


class TextFormatter(logging.Formatter):
    """Formats a record as one line, and a traceback indented below it, so that a newline in a client's name or an error's text
    cannot begin a line of the log."""

    def __init__(self) -> None:
        super().__init__(TEXT)

    def format(self, record: logging.LogRecord) -> str:
        record.message, record.asctime = record.getMessage(), self.formatTime(record)
        line = self.formatMessage(record)
        line += "".join(f" {name}={value}" for name, value in _fields(record) if name in IN_TEXT)
        line = line.replace("\n", "\\n")
        if exception := _exception(self, record):
            line += "".join(f"\n{INDENT}{each}" for each in exception.split("\n"))
        return line.replace("\r", "\\r")


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object per line: ``ts`` (UTC), ``level``, ``logger``, ``message``; if known ``session``,
    ``trace_id``, ``span_id``, ``audit``, ``exception``, and in ``toymq worker`` ``job``, ``message_id``, ``attempt``."""

    def format(self, record: logging.LogRecord) -> str:
        row: dict[str, Any] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **dict(_fields(record)),
        }
        if exception := _exception(self, record):
            row["exception"] = exception
        return json.dumps(row, default=str)


def _exception(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """The traceback of a record; "" without one."""
    return record.exc_text or (formatter.formatException(record.exc_info) if record.exc_info else "")


def _fields(record: logging.LogRecord) -> Iterator[tuple[str, object]]:
    for name in FIELDS:
        value = getattr(record, name, None)
        if value is not None:
            yield name, value


@dataclass(slots=True)
class _Kind:
    """The group of lines that share a limit: those of one text, or of one place in the source."""

    limit: int
    written_s: deque[float] = field(default_factory=deque)
    """When lines were written, for lines that count: those written less than ``WINDOW_S`` ago."""
    suppressed: int = 0
    last: logging.LogRecord | None = None
    """The last line that was suppressed."""
    due_s: float = 0.0
    """When the number of suppressed lines is to be told."""

    def used(self, now: float) -> int:
        """How many lines of the window count at ``now``."""
        while self.written_s and now - self.written_s[0] >= WINDOW_S:
            self.written_s.popleft()
        return len(self.written_s)


class Repeats:
    """Limits repeated lines, by text and by place: the line of the source that logs them. Lines beyond a limit are counted, and
    a report tells their number within ``WINDOW_S``. The report counts as a line of its place, so no place writes more lines
    than its limit in a ``WINDOW_S``. Debug lines are never suppressed, since debugging needs them all; nor are lines with
    ``extra={"every": True}``, the audit trail's.

    Memory is bounded without an eviction: places are lines of the source, and a text is kept only once it was written.
    """

    def __init__(self, clock: Clock) -> None:
        """``clock``: its monotonic time is used, as a wall clock that is set back would suppress lines for that long."""
        self._clock = clock
        self._texts: dict[tuple[str, str], _Kind] = {}  # least recently written first
        self._places: dict[tuple[str, str, int], _Kind] = {}
        self._untold: deque[_Kind] = deque()  # by ``due_s``

    @property
    def untold(self) -> int:
        """The number of texts and places with suppressed lines that were not reported yet."""
        return len(self._untold)

    def said(self, record: logging.LogRecord) -> list[logging.LogRecord]:
        """Records to write now: overdue reports, and the new record unless it repeats."""
        if record.levelno <= logging.DEBUG or getattr(record, "every", False):
            return [record]
        now = self._clock.monotonic()
        out = self.overdue(now)
        key = (record.name, record.getMessage())
        text, place = self._texts.get(key) or _Kind(SAME_MAX), self._place(record)
        if text.used(now) >= text.limit:
            self._suppress(text, record, 1, now)
        elif self._is_full(place, now):
            self._suppress(place, record, 1, now)
        else:
            self._texts.pop(key, None)
            self._texts[key] = text
            text.written_s.append(now)
            place.written_s.append(now)
            self._forget_texts(now)
            out.append(record)
        return out

    def overdue(self, now: float) -> list[logging.LogRecord]:
        """Reports of suppressed lines that are due at ``now`` of the monotonic clock; all of them at infinity."""
        out = []
        while self._untold and self._untold[0].due_s <= now:
            kind = self._untold.popleft()
            assert kind.last is not None
            last, suppressed, place = kind.last, kind.suppressed, self._place(kind.last)
            kind.last, kind.suppressed = None, 0
            if kind is not place and self._is_full(place, now):
                self._suppress(place, last, suppressed, now)
            else:
                place.written_s.append(now)
                out.append(_summary(last, suppressed))
        return out

    def _place(self, record: logging.LogRecord) -> _Kind:
        return self._places.setdefault((record.name, record.pathname, record.lineno), _Kind(ALIKE_MAX))

    def _is_full(self, place: _Kind, now: float) -> bool:
        """Whether a place has reached its limit, with one line reserved for the report of suppressed lines."""
        return place.used(now) + bool(place.suppressed) >= place.limit

    def _suppress(self, kind: _Kind, last: logging.LogRecord, count: int, now: float) -> None:
        if not kind.suppressed:
            kind.due_s = now + WINDOW_S
            self._untold.append(kind)
        kind.suppressed += count
        kind.last = last

    def _forget_texts(self, now: float) -> None:
        """Drop texts without lines in the current window."""
        over = list(takewhile(lambda key: not self._texts[key].used(now), self._texts))
        for key in over:
            del self._texts[key]


def _summary(last: logging.LogRecord, suppressed: int) -> logging.LogRecord:
    record = copy(last)
    record.msg = f"{record.getMessage()} ({suppressed} more like it were suppressed)"
    record.args = None
    record.exc_info = record.exc_text = None
    return record


class _Wake(Enum):
    """A marker in the queue: lines were suppressed, and their number must be reported at the end of the window."""

    WAKE = "wake"


_WAKE = _Wake.WAKE
Line = logging.LogRecord | Literal[_Wake.WAKE]


class _Outbox(logging.handlers.QueueHandler):
    """The queue of lines to the thread that writes them; putting one never waits."""

    def __init__(self, lines: "queue.Queue[Line | None]", clock: Clock) -> None:
        super().__init__(lines)
        self.dropped = 0
        self.repeats = Repeats(clock)

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Format the message on the calling thread, since its arguments may change before the writer reads it. The traceback is
        left to the formatter."""
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
        """Reports of suppressed lines (``Repeats``) that are overdue, for the thread that writes."""
        with self.lock or nullcontext():
            return self.repeats.overdue(now)


@contextmanager
def to_stderr(levels: str, form: LogFormat = "text") -> Iterator[None]:
    """Log to stderr while this context lasts. ``levels``: a text as ``--log-level`` takes it."""
    lines: queue.Queue[Line | None] = queue.Queue(LINES_MAX)
    clock = SystemClock()
    outbox = _Outbox(lines, clock)
    writer = logging.StreamHandler(sys.stderr)
    writer.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.raiseExceptions = False  # an unwritable stderr stops nothing

    def write() -> None:
        while True:
            try:
                line = lines.get(timeout=WINDOW_S if outbox.repeats.untold else None)
            except queue.Empty:
                line = _WAKE
            if line is None or line is _WAKE:
                for overdue in outbox.overdue(inf if line is None else clock.monotonic()):
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
    """Change the log levels, also of a running broker. ``text``: as ``--log-level`` takes it. Raises: ConfigError."""
    levels = parse_log_levels(text)
    logging.getLogger().setLevel(levels.default.upper())
    for subsystem in SUBSYSTEMS:
        _logger(subsystem).setLevel(levels.of(subsystem).upper())


def _logger(subsystem: str) -> logging.Logger:
    return logging.getLogger(f"toymq_py.{subsystem}")
