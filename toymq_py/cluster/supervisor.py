"""The parent of a node's process: starts it again when it ends, and passes signals on.

Contract: replication.md, section 5; ADR 0107. A leader whose term ends leaves its process, and the next one follows; a process
that was killed is replaced at once, and its successor ends the lease that it held. The parent has imported all that a node
needs, has no threads and no loop, and forks: a new process needs no imports.

    exit code of a node    the supervisor
    0                      ends with 0: the node was stopped
    3                      starts it again: its term has ended
    2                      ends with 2: options, files or the directory are unusable, and the log says why
    others, signals        starts it again
"""

import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress

from toymq_py.clock import Clock

TERM_ENDED = 3
UNUSABLE = 2
CRASHED = 4
"""A bug ended the node; its traceback is on stderr."""
QUICK_S = 2.0
"""A process that lived shorter counts as one that fails at its start."""
BACK_OFF_MIN_S, BACK_OFF_MAX_S = 0.1, 5.0
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
ENDING = (signal.SIGTERM, signal.SIGINT)


class Supervisor:
    """Runs a node in a process of its own, one after the other, until it is stopped."""

    def __init__(self, run: Callable[[int], int], say: Callable[[str], None], clock: Clock) -> None:
        """
        Args:
            run: the node, in its process: gets a descriptor that becomes readable when the supervisor has died, and returns the
                exit code.
            say: logs a line. Called while there is no node.
        """
        self._run = run
        self._say = say
        self._monotonic = clock.monotonic
        self._child = 0
        self._stopping = False

    def supervise(self) -> int:
        """Start the node, again and again. Returns: the exit code of the command. Raises: OSError (no process)."""
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
        """Returns: the exit code, -N when signal N ended the process."""
        lives, holds = os.pipe()
        signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)  # a signal before the child is known would be lost
        pid = os.fork()
        if not pid:
            os.close(holds)
            self._become_node(lives)
        self._child = pid
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        os.close(lives)
        try:
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        finally:
            self._child = 0
            os.close(holds)

    def _become_node(self, lives: int) -> None:
        """In the child. Does not return."""
        code = CRASHED
        try:
            os.setpgid(0, 0)  # Ctrl-C reaches the supervisor, which passes it on: not twice
            for number in PASSED_ON:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
            code = self._run(lives)
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else CRASHED
        except BaseException:  # noqa: BLE001 (the process ends here)
            traceback.print_exc()
        finally:
            with suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)  # no atexit of the supervisor's, and no wait for threads whose disk hangs

    def _pass_on(self, number: int, frame: object) -> None:
        if number in ENDING:
            self._stopping = True
        if self._child:
            with suppress(ProcessLookupError):
                os.kill(self._child, number)

    def _wait(self, seconds: float) -> None:
        """Wait, or until a signal ends it all."""
        until = self._monotonic() + seconds
        while not self._stopping and (left_s := until - self._monotonic()) > 0:
            time.sleep(min(left_s, 0.05))


def _how_it_ended(code: int) -> str:
    if code == TERM_ENDED:
        return "leads no longer"
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"has exited with {code}"
