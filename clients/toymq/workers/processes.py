"""Runs several worker processes: starts them, restarts those that die, restarts all when a source file changes, and stops all
together.

Each process ends by itself when this parent process is gone, even by kill -9: it reads a pipe that closes then.
"""

import logging
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random

from toymq.backoff import Backoff
from toymq_py.clock import Clock, SystemClock

logger = logging.getLogger("toymq.workers")
UNUSABLE = 2
"""Exit code of a process whose app cannot be loaded: the next one would end the same way."""
LOOK_S = 0.2
LOOKS_PER_WATCH = 5
"""The number of looks for each walk over the watched tree: a walk over a large one is not free."""
QUICK_S = 2.0
"""A process that lived shorter counts as one that fails at its start."""
BACK_OFF_MIN_S, BACK_OFF_MAX_S = 0.1, 10.0
KILLED_BEHIND_S = 5.0
"""How much longer than its time to shut down a process may take."""
SKIPPED = frozenset(("__pycache__", "node_modules", "build", "dist"))


def sources(root: Path) -> Iterator[tuple[str, int]]:
    """Yield the Python files below a directory, with the time of their last change in ns; virtual environments are skipped."""
    for folder, names, files in os.walk(root):
        if "pyvenv.cfg" in files:
            names.clear()
            continue
        names[:] = [name for name in names if name not in SKIPPED and not name.startswith(".")]
        for name in files:
            if name.endswith(".py"):
                path = Path(folder, name)
                try:
                    changed_ns = path.stat().st_mtime_ns
                except OSError:  # it was removed meanwhile
                    continue
                yield str(path), changed_ns


@dataclass(slots=True)
class _Slot:
    """The place of one worker process, which each successor of a dead process takes over."""

    arguments: Sequence[str] = ()
    """The arguments of this process alone."""
    child: subprocess.Popen[bytes] | None = None
    began: float = 0.0
    due: float = 0.0
    """When the next process starts, on the monotonic clock."""
    backoff: Backoff = field(default_factory=lambda: Backoff(BACK_OFF_MIN_S, BACK_OFF_MAX_S, Random()))


class Processes:
    """Runs a command in several processes at once. ``watch``: a directory; when a source file below it changes, all processes
    are restarted gracefully."""

    def __init__(
        self, command: Sequence[str], each: Sequence[Sequence[str]], *, watch: Path | None, shutdown_s: float,
        clock: Clock | None = None,
    ) -> None:  # fmt: skip
        """
        Args:
            command: the command of every process; ``--parent FD``, the reading end of the pipe, is appended.
            each: one entry for each process: its own arguments, after ``command``.
        """
        self._command = list(command)
        self._slots = [_Slot(arguments) for arguments in each]
        self._watch = watch
        self._shutdown_s = shutdown_s
        self._monotonic = (clock or SystemClock()).monotonic
        self._stopping = False
        self._unusable = False
        self._waiting = False
        """Whether it waits for a change, behind a process that cannot work."""

    def run(self) -> int:
        """Run the processes until a signal stops them. Returns: the exit code: 0, or that of a command that cannot run."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        reads, writes = os.pipe()
        self._pipe = reads
        try:
            seen = self._sources()
            for look in count():
                if self._stopping:
                    break
                self._look()
                if self._unusable and self._watch is None:
                    break
                if self._unusable and not self._waiting:
                    self._waiting = True
                    logger.error("the workers wait until a source file changes")
                time.sleep(LOOK_S)
                if look % LOOKS_PER_WATCH == 0 and (now := self._sources()) != seen:
                    seen = now
                    logger.info("a source file changed: the workers start anew")
                    self._end()
                    self._unusable = self._waiting = False
            self._end()
            return UNUSABLE if self._unusable else 0
        finally:
            os.close(writes)
            os.close(reads)

    def _sources(self) -> dict[str, int]:
        return {} if self._watch is None else dict(sources(self._watch))

    def _look(self) -> None:
        """Start the processes that are due for a start, and notice those that have ended."""
        now = self._monotonic()
        for slot in self._slots:
            if slot.child is None and now >= slot.due and not self._unusable:
                slot.began = now
                slot.child = subprocess.Popen(
                    [*self._command, *slot.arguments, "--parent", str(self._pipe)], pass_fds=(self._pipe,)
                )
            elif slot.child is not None and (code := slot.child.poll()) is not None:
                slot.child = None
                if code == UNUSABLE:
                    self._unusable = True
                    continue
                if now - slot.began >= QUICK_S:
                    slot.backoff.reset()
                delay_s = slot.backoff.next_s()
                slot.due = now + delay_s
                how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"has exited with {code}"
                logger.warning("a worker process %s: the next one starts in %.1f s", how, delay_s)

    def _end(self) -> None:
        """Stop all processes with SIGTERM, and with SIGKILL those that do not end in time."""
        living = [slot.child for slot in self._slots if slot.child is not None]
        for child in living:
            child.terminate()
        deadline = self._monotonic() + self._shutdown_s + KILLED_BEHIND_S
        for child in living:
            try:
                child.wait(max(0.0, deadline - self._monotonic()))
            except subprocess.TimeoutExpired:
                logger.error("worker process %d does not end: it is killed", child.pid)  # noqa: TRY400 (expected)
                child.kill()
                child.wait()
        for slot in self._slots:
            slot.child, slot.due = None, 0.0
            slot.backoff.reset()

    def _stop(self, number: int, frame: object) -> None:
        """Handle SIGTERM and Ctrl-C: stop the processes. A second Ctrl-C waits for nothing: the connections close, so the jobs
        go to other workers."""
        if self._stopping and number == signal.SIGINT:
            for slot in self._slots:
                if slot.child is not None:
                    slot.child.kill()
        self._stopping = True
