"""Log lines leave the broker on a thread of their own.

A pipe whose reader does not read blocks whoever writes to it. That must not be the event loop: the broker once stood still,
with everybody's messages, for the sake of a log line.
"""

import logging
import logging.handlers
import queue
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

LINES_MAX = 10_000
"""So many lines wait for a reader that is slow; what comes beyond is dropped and counted."""
FAREWELL_S = 1.0
"""How long the end of the process waits for the last lines to be taken."""
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class _Outbox(logging.handlers.QueueHandler):
    """Never waits."""

    def __init__(self, lines: "queue.Queue[logging.LogRecord | None]") -> None:
        super().__init__(lines)
        self.dropped = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait(record)
        except queue.Full:
            self.dropped += 1


@contextmanager
def to_stderr(level: str) -> Iterator[None]:
    """Log to stderr as long as this lasts. ``level``: "debug", "info", "warning" or "error"."""
    lines: queue.Queue[logging.LogRecord | None] = queue.Queue(LINES_MAX)
    outbox = _Outbox(lines)
    writer = logging.StreamHandler(sys.stderr)
    writer.setFormatter(logging.Formatter(FORMAT))
    logging.raiseExceptions = False  # an unwritable stderr stops nothing

    def write() -> None:
        while (record := lines.get()) is not None:
            writer.handle(record)
            if outbox.dropped and lines.empty():
                dropped, outbox.dropped = outbox.dropped, 0
                logging.getLogger("toymq_py.logs").warning("%d log lines were dropped: nobody took them", dropped)

    thread = threading.Thread(target=write, name="toymq-log", daemon=True)
    thread.start()
    root = logging.getLogger()
    root.setLevel(level.upper())
    root.addHandler(outbox)
    try:
        yield
    finally:
        root.removeHandler(outbox)
        with suppress(queue.Full):
            lines.put(None, timeout=FAREWELL_S)
        thread.join(FAREWELL_S)
