"""The parent of a node's process: starts the node again when it ends, and passes signals on to it.

Contract: replication.md, section 5; ADR 0107. The process of a leader ends with the term, and a new one is started. A process
that was killed is replaced at once, and the new one revokes the etcd lease of the old one. The parent has imported all that a
node needs, has no threads and no event loop, and forks: a new process needs no imports.

    exit code of a node    the supervisor
    0                      ends with 0: the node was stopped
    3                      starts it again: its term has ended
    2                      ends with 2: options, files or the directory are unusable, and the log says why
    others, signals        starts it again
"""

import gc
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from toymq_py.clock import Clock
from toymq_py.forking import BACK_OFF_MAX_S, BACK_OFF_MIN_S, ENDING, PASSED_ON, QUICK_S, UNUSABLE, LifeLine, fork, how_it_ended

TERM_ENDED = 3


class Supervisor:
    """Runs a node in a child process, and starts the next one when that ends, until the node is stopped."""

    def __init__(self, run: Callable[[int], int], say: Callable[[str], None], clock: Clock) -> None:
        """
        Args:
            run: runs the node in the child process. Gets a descriptor that becomes readable when the supervisor has died.
                Returns: the exit code.
            say: logs a line. Called only while no node runs.
        """
        self._run = run
        self._say = say
        self._monotonic = clock.monotonic
        self._child = 0
        self._stopping = False

    def supervise(self) -> int:
        """Start the node, again and again. Returns: the exit code of the command. Raises: OSError (fork failed)."""
        gc.collect()
        gc.freeze()  # what was imported stays shared with the node: a collection there would copy its pages
        for number in PASSED_ON:
            signal.signal(number, self._pass_on)
        back_off_s = BACK_OFF_MIN_S
        while True:
            began = self._monotonic()
            code = self._run_once()
            if self._stopping or code in (0, -signal.SIGHUP):  # SIGHUP ends it where there is nothing to read again
                return max(code, 0)
            if code == UNUSABLE:
                return code
            self._say(f"the node {_how_it_ended(code)}: it starts again")
            if self._monotonic() - began >= QUICK_S:
                back_off_s = BACK_OFF_MIN_S
            else:
                self._wait(back_off_s)
                back_off_s = min(back_off_s * 2, BACK_OFF_MAX_S)
            if self._stopping:
                return 0

    def _run_once(self) -> int:
        """Run one process to its end. Returns: the exit code, -N when signal N ended the process."""
        line = LifeLine()
        signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
        self._child = fork(self._run, line)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        try:
            return os.waitstatus_to_exitcode(os.waitpid(self._child, 0)[1])
        finally:
            self._child = 0
            line.close()

    def _pass_on(self, number: int, frame: object) -> None:
        if number in ENDING:
            self._stopping = True
        if self._child:
            with suppress(ProcessLookupError):
                os.kill(self._child, number)

    def _wait(self, seconds: float) -> None:
        """Wait for the node, or for a signal that ends everything."""
        until = self._monotonic() + seconds
        while not self._stopping and (left_s := until - self._monotonic()) > 0:
            time.sleep(min(left_s, 0.05))


def _how_it_ended(code: int) -> str:
    if code == TERM_ENDED:
        return "leads no longer"
    return how_it_ended(code)
