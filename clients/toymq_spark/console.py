"""Filters the stderr of the processes that Spark starts, and ends a job on a signal.

The JVM and its Python workers write to the inherited stderr: messages of the start, stack traces of an error that the command
prints in one line, and tracebacks of workers after their job. So they get a pipe, and a thread passes on the rest. Knows
nothing of jobs.
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
    """Stderr of processes started within ``starting``. Its thread ends with the last of them."""

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
        """Hold output back during the start: it matters only when that fails (``last_words``)."""
        os.dup2(self._pipe, 2)
        try:
            yield
        finally:
            os.dup2(self._out, 2)
        os.write(self._pipe, _STARTED)

    def last_words(self) -> str | None:
        """Why a JVM did not start, in one line; None when unknown."""
        self.drain()
        lines = [line.decode(errors="replace").strip() for line in self._before or ()]
        found = (re.match(r'(?:Exception in thread "[^"]*" [\w.$]+: |Error: )(.+)', line) for line in lines)
        return next((match[1] for match in found if match), None)

    def mute(self) -> None:
        """Drop all output from now on: it only follows from our exit."""
        self._muted = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2)
        os.close(nowhere)

    def drain(self) -> None:
        """Wait until all output so far has been passed on, and drop what comes later."""
        os.write(self._pipe, _ENDED)
        self._drained.wait(DRAIN_S)

    def take(self, data: bytes) -> bytes:
        """Filter whole lines; a traceback is held until its last line."""
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
    """SIGTERM and SIGINT end a job at once: the next run repeats the current batch, and each record is there once.

    No request is sent to the JVM: the signal may have interrupted one, whose reply would be taken for the next. The JVM gets a
    SIGTERM, and later failures here only follow from that.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        self.code: int | None = None

    def watch(self, jvm: "subprocess.Popen[bytes] | None") -> None:
        """
        Args:
            jvm: None when this process did not start it.
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
