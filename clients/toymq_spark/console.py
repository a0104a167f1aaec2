"""Filters the stderr of the processes that Spark starts, and ends a job on a signal.

The JVM and its Python workers inherit stderr, and write noise to it: start messages, stack traces of an error that the command
itself prints in one line, and tracebacks of workers after the end of their job. So they get a pipe as stderr, and a thread
filters it and passes the rest on. Does not know jobs.
"""

import logging
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

_STARTED, _ENDED = b"\0started\n", b"\0ended\n"
"""Markers that this process writes into the pipe, to separate earlier from later output."""
_TRACEBACK = b"Traceback (most recent call last):"
_GONE = (b"BrokenPipeError", b"ConnectionResetError", b"KeyboardInterrupt")
"""Last lines of a worker's traceback after the end of its job."""
DRAIN_S = 2.0
JVM_S = 10.0
"""Time for a JVM to remove its temporary files after SIGTERM."""


class Console:
    """The stderr of processes that are started within ``starting``. Its thread ends when the last of them ends."""

    def __init__(self) -> None:
        self._out = os.dup(2)
        read, self._pipe = os.pipe()
        self._before: list[bytes] | None = []
        self._block: list[bytes] = []
        self._muted = False
        self._drained = threading.Event()
        threading.Thread(target=self._pump, args=(read,), name="console", daemon=True).start()

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Hold output back during the start of the JVM: it matters only if the start fails (``last_words``)."""
        os.dup2(self._pipe, 2)
        try:
            yield
        finally:
            os.dup2(self._out, 2)
        os.write(self._pipe, _STARTED)

    def last_words(self) -> str | None:
        """Return one line that says why the JVM did not start; None when that is unknown."""
        self.drain()
        lines = [line.decode(errors="replace").strip() for line in self._before or ()]
        found = (re.match(r'(?:Exception in thread "[^"]*" [\w.$]+: |Error: )(.+)', line) for line in lines)
        return next((match[1] for match in found if match), None)

    def mute(self) -> None:
        """Drop all output from now on, since it only results from this process's exit."""
        self._muted = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2)
        os.close(nowhere)

    def drain(self) -> None:
        """Wait until all output so far has been passed on, and drop what comes later."""
        os.write(self._pipe, _ENDED)
        self._drained.wait(DRAIN_S)

    def take(self, data: bytes) -> bytes:
        """Filter whole lines, and return those to show; a traceback is held back until its last line has come."""
        shown = b""
        for line in data.splitlines(keepends=True):
            if line.endswith(_STARTED):
                self._before = None
            elif line.endswith(_ENDED):
                self._muted = True  # what follows is of workers after their job
            elif self._muted:
                continue
            elif self._before is not None:
                self._before.append(line)
            elif line.startswith(_TRACEBACK):
                shown += self._unblock()
                self._block = [line]
            elif self._block and line.startswith(b" "):
                self._block.append(line)
            elif self._block and line.startswith(_GONE) and any(b"daemon.py" in one for one in self._block):
                self._block = []
            else:
                shown += self._unblock() + line
        return shown

    def _unblock(self) -> bytes:
        block, self._block = self._block, []
        return b"".join(block)

    def _pump(self, read: int) -> None:
        rest = b""
        while data := os.read(read, 1 << 16):
            # A progress bar begins with a carriage return and has no newline.
            whole, newline, rest = (rest + data).rpartition(b"\n")
            shown = self.take(whole + newline)
            if rest.startswith(b"\r") and self._before is None and not self._muted:
                shown, rest = shown + rest, b""
            if shown:
                try:
                    os.write(self._out, shown)
                except OSError:  # the reader is gone: go on reading, so that the processes do not block
                    self._muted = True
            if self._muted:
                self._drained.set()
        os.close(read)


class Ending:
    """Ends a job at once on SIGTERM and SIGINT: the next run repeats the current batch, and still stores each record once.

    The JVM gets no request to stop, since the signal may have interrupted a request, whose reply would be taken for that of the
    next one. It gets a SIGTERM, and later failures in this process only result from that.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        self.code: int | None = None

    def watch(self, jvm: "subprocess.Popen[bytes] | None") -> None:
        """
        Args:
            jvm: the JVM; None when this process did not start it.
        """

        def handle(number: int, frame: FrameType | None) -> NoReturn:
            for one in self._before:
                signal.signal(one, signal.SIG_IGN)
            self.code = 128 + number
            self._console.mute()
            logging.disable()
            if jvm is not None:
                jvm.terminate()
                try:
                    jvm.wait(JVM_S)
                except subprocess.TimeoutExpired:
                    jvm.kill()
            raise SystemExit(self.code)

        for number in self._before:
            signal.signal(number, handle)

    def restore(self) -> None:
        """Restore the previous signal handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
