"""A process that calls a job's function for one message after the other; this file is the worker's end.

The worker keeps the message and its lease, and acks or nacks it; the process gets what it needs to call the function, and sends
back the outcome. ADR 0129. The process ends with its worker, even after ``kill -9``: it reads a pipe that closes then.
"""

import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from toymq.errors import JobProcessEnded
from toymq.workers import job_child
from toymq.workers.job_messages import Answer, LogLine, Place, Request, Unusable
from toymq_py.errors import ConfigError

_START = threading.Lock()
"""Held during a start: ``multiprocessing`` keeps a list of its processes, which a start walks."""
_CONTEXT = multiprocessing.get_context("spawn")


def end_of(process: Any) -> int:
    """Return a descriptor that is readable when a process has ended. The process's ``sentinel`` would also wait for everything
    that it has forked."""
    try:
        return os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # not on macOS, nor on a Linux of before 5.3
        sentinel: int = process.sentinel
        return sentinel


class Lifeline:
    """A pipe whose writing end only this process holds, so that its child processes, which read from it, notice when this
    process is gone."""

    def __init__(self) -> None:
        self.reader, self._writer = _CONTEXT.Pipe(duplex=False)

    def close(self) -> None:
        self.reader.close()
        self._writer.close()


class JobProcess:
    """A child process for one function. ``start`` and ``call`` block, and only one thread at a time may use them; any thread
    may ``kill``."""

    def __init__(self, place: Place, lifeline: Lifeline) -> None:
        self._place = place
        self._lifeline = lifeline
        self._connection: Connection | None = None
        self._process: Any = None
        self._lock = threading.Lock()
        self._end = -1
        """A descriptor that is readable when the process has ended."""
        self._killed = self._gone = False

    @property
    def is_alive(self) -> bool:
        """Whether the process takes another call."""
        return self._connection is not None and not self._gone and not self._killed and not wait((self._end,), 0)

    def start(self) -> None:
        """Start the process, and wait until it has imported the function. Raises: ConfigError; JobProcessEnded if a signal
        killed it, perhaps for lack of memory: another process may start."""
        ours, theirs = _CONTEXT.Pipe()
        with _START, self._lock:
            if self._killed:
                raise JobProcessEnded(f"the process for {self._name} is not needed any more")
            self._process = _CONTEXT.Process(
                target=job_child.main, name=f"toymq {self._name}",
                args=(self._place, theirs, self._lifeline.reader, logging.getLogger().getEffectiveLevel()),
            )  # fmt: skip
            before = signal.pthread_sigmask(signal.SIG_BLOCK, job_child.SIGNALS)  # it inherits that, until it can handle them
            try:
                self._process.start()
            except RuntimeError as error:  # a script that starts its workers when it is imported
                raise ConfigError(
                    f"a process for {self._name} cannot be started: put the call that runs the app below `if __name__ =="
                    f' "__main__":`, or start it with `toymq worker` ({error})'
                ) from None
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            self._end = end_of(self._process)
        theirs.close()
        self._connection = ours
        try:
            found = self._hear(lambda _: None)  # what the import logs was logged here at the same import
        except JobProcessEnded as error:
            if self._process.exitcode >= 0:
                raise ConfigError(f"{error} before it could call it: see above, what it has printed") from None
            raise
        if isinstance(found, Unusable):
            self.kill()
            self._bury()
            raise ConfigError(f"a process cannot call {self._name}: {found.text}")

    @property
    def _name(self) -> str:
        return f"{self._place.module}.{self._place.qualname}"

    def call(self, request: Request, on_log: Callable[[dict[str, Any]], None]) -> Answer:
        """Call the function in the process, and wait for the outcome. Raises: JobProcessEnded."""
        assert self._connection is not None
        try:
            self._connection.send(request)
        except OSError:
            raise self._bury() from None
        found = self._hear(on_log)
        assert isinstance(found, Answer)
        return found

    def _hear(self, on_log: Callable[[dict[str, Any]], None]) -> Any:
        """Return the process's next message that is not a log line; log lines go to ``on_log``. Raises: JobProcessEnded."""
        connection = self._connection
        assert connection is not None
        try:
            while connection in wait((connection, self._end)):
                said = connection.recv()
                if not isinstance(said, LogLine):
                    return said
                on_log(said.fields)
        except (EOFError, OSError):
            pass
        raise self._bury()

    def kill(self) -> None:
        """Kill the process and all that it has started, at once. Idempotent."""
        with self._lock:
            self._killed = True
            self._end_group()

    def _end_group(self) -> None:
        if self._process is not None and self._process.pid is not None and not self._gone:
            with suppress(ProcessLookupError, PermissionError):  # the second: macOS says so of what has ended
                os.killpg(self._process.pid, signal.SIGKILL)
            with suppress(OSError, ValueError):
                os.kill(self._process.pid, signal.SIGKILL)  # before it is the leader of a group

    def _bury(self) -> JobProcessEnded:
        """Kill what an ended process had started. Returns: the error that says how the process ended."""
        with self._lock:
            self._end_group()
            self._gone = True
        self._process.join()
        code = self._process.exitcode
        if self._connection is not None:
            self._connection.close()
        if self._end != self._process.sentinel:
            os.close(self._end)
        how = f"exited with {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"
        hint = ": of a lack of memory, perhaps" if code == -signal.SIGKILL and sys.platform == "linux" else ""
        return JobProcessEnded(f"the process of {self._name} {how}{hint}")

    def close(self) -> None:
        """Let the process end by itself; it is idle."""
        self.kill()
        if self._process is not None and not self._gone:
            self._bury()
