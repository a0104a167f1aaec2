"""Several worker processes: started, restarted when they die, stopped together, and restarted when a source file changes.

Each process ends by itself when this one is gone, kill -9 included: it holds the reading end of a pipe.
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
    """Python files below a directory with the times of their last change; not those of virtual environments."""
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
    """The slot of one process and its successors."""

    arguments: Sequence[str] = ()
    """The arguments of this process alone."""
    child: subprocess.Popen[bytes] | None = None
    began: float = 0.0
    due: float = 0.0
    """When the next process starts, on the monotonic clock."""
    backoff: Backoff = field(default_factory=lambda: Backoff(BACK_OFF_MIN_S, BACK_OFF_MAX_S, Random()))


class Processes:
    """Runs a command several times at once. ``watch``: a directory whose changed sources start all anew, gracefully."""

    def __init__(
        self, command: Sequence[str], each: Sequence[Sequence[str]], *, watch: Path | None, shutdown_s: float,
        clock: Clock | None = None,
    ) -> None:  # fmt: skip
        """
        Args:
            command: gets ``--parent FD`` appended, the pipe's reading end.
            each: each process's own arguments, behind that; one entry for each process.
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
        """Run the processes until the end. Returns: the exit code: 0, or that of a command that cannot run."""
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
        """Start processes that are due, and see which have ended."""
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
        """Stop all processes: SIGTERM, and SIGKILL for what does not end."""
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
        """Stop the processes. At the second Ctrl-C nothing is waited for: jobs go to other workers, since their connections
        end."""
        if self._stopping and number == signal.SIGINT:
            for slot in self._slots:
                if slot.child is not None:
                    slot.child.kill()
        self._stopping = True
