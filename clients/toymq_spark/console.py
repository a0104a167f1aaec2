"""The stderr of the processes that Spark starts, filtered, and the end of a job by a signal.

The JVM and its Python workers write to the stderr that they inherit: how the JVM starts, pages of Java for an error that the
command prints in one line, and tracebacks of workers after the end of their job. So they get a pipe, and a thread passes on
the rest. Knows nothing of jobs.
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
"""Written into the pipe by ourselves, to separate what came before from what comes later."""
_TRACEBACK = b"Traceback (most recent call last):"
_GONE = (b"BrokenPipeError", b"ConnectionResetError", b"KeyboardInterrupt")
"""Last lines of a worker's traceback after the end of its job."""
DRAIN_S = 2.0
JVM_S = 10.0
"""Time for a JVM to remove its temporary files after SIGTERM."""


class Console:
    """Stderr of the processes that are started within ``starting``. The thread ends with the last of them."""

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
        """Hold output back meanwhile: it matters only when the start fails (``last_words``)."""
        os.dup2(self._pipe, 2)
        try:
            yield
        finally:
            os.dup2(self._out, 2)
        os.write(self._pipe, _STARTED)

    def last_words(self) -> str | None:
        """Why a JVM did not start, in a line; None when it does not say."""
        self.drain()
        lines = [line.decode(errors="replace").strip() for line in self._before or ()]
        found = (re.match(r'(?:Exception in thread "[^"]*" [\w.$]+: |Error: )(.+)', line) for line in lines)
        return next((said[1] for said in found if said), None)

    def mute(self) -> None:
        """Drop all output from now on: it only follows from our own end."""
        self._muted = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2)
        os.close(nowhere)

    def drain(self) -> None:
        """Wait until all output so far has been passed on, and drop what comes later."""
        os.write(self._pipe, _ENDED)
        self._drained.wait(DRAIN_S)

    def take(self, data: bytes) -> bytes:
        """What remains of some whole lines; a traceback is held until its last line is known."""
        shown = b""
        for line in data.splitlines(keepends=True):
            if line.endswith(_STARTED):
                self._before = None
            elif line.endswith(_ENDED):
                self._muted = True  # half a traceback: of a worker after the end of its job
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
            # A progress bar has no line breaks, and begins with a carriage return.
            whole, newline, rest = (rest + data).rpartition(b"\n")
            shown = self.take(whole + newline)
            if rest.startswith(b"\r") and self._before is None and not self._muted:
                shown, rest = shown + rest, b""
            if shown:
                try:
                    os.write(self._out, shown)
                except OSError:  # the reader is gone: the processes must not block on that
                    self._muted = True
            if self._muted:
                self._drained.set()
        os.close(read)


class Ending:
    """SIGTERM and SIGINT end a job at once: the batch that runs is run again next time, and each record is there once.

    Nothing is asked of the JVM: the signal may have come in the middle of a question, and its answer would be taken for that
    of the next one. It is told to end as we are, and what then fails here only follows from that.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        self.code: int | None = None

    def watch(self, jvm: "subprocess.Popen[bytes] | None") -> None:
        """
        Args:
            jvm: None where it is not ours.
        """

        def told(number: int, frame: FrameType | None) -> NoReturn:
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
            signal.signal(number, told)

    def restore(self) -> None:
        """Signals do again what they did."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
