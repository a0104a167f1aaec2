"""Forks child processes that notice the death of their parent, even by kill -9. For supervisors, which must have no threads and
no event loop. ``end_with_parent`` is for a program that another program starts.

The parent has imported all modules that its children need, so that a new child starts fast.
"""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

CRASHED = 4
"""Exit code: a bug ended the child; its traceback is on stderr."""
UNUSABLE = 2
"""Exit code: options, files or the directory are unusable, and the log says why."""
QUICK_S = 2.0
"""A process that lived shorter counts as one that fails at its start."""
BACK_OFF_MIN_S, BACK_OFF_MAX_S = 0.1, 5.0
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
ENDING = (signal.SIGTERM, signal.SIGINT)


class LifeLine:
    """A pipe whose reading end becomes readable when the process that made it has ended, since no other process holds its
    writing end."""

    def __init__(self) -> None:
        self.lives, self._holds = os.pipe()

    def inherited(self) -> None:
        """Close the writing end in a child, since only the parent may hold it."""
        os.close(self._holds)

    def close(self) -> None:
        os.close(self.lives)
        os.close(self._holds)


def fork(run: Callable[[int], int], line: LifeLine) -> int:
    """Run ``run`` in a child; it gets the line's descriptor and returns the child's exit code. Returns: the process id.

    Assumes that the signals in PASSED_ON are blocked: one that came before the child is known would be lost. Raises: OSError
    (fork failed).
    """
    pid = os.fork()
    if not pid:
        line.inherited()
        _become_child(run, line.lives)
    return pid


def _become_child(run: Callable[[int], int], lives: int) -> NoReturn:
    code = CRASHED
    try:
        os.setpgid(0, 0)  # Ctrl-C reaches the parent, which passes it on: not twice
        for number in PASSED_ON:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        code = run(lives)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else CRASHED
    except BaseException:  # noqa: BLE001 (the process ends here)
        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)  # no atexit of the parent's, and no wait for threads whose disk hangs


def how_it_ended(code: int) -> str:
    """How a process ended, in words, from its exit code, or -N for signal N."""
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"has exited with {code}"


def end_with_parent() -> None:
    """SIGKILL this process when its standard input ends, a pipe whose other end only its parent holds. Linux's signal for the
    death of a parent (PDEATHSIG) already comes when the thread ends that started the process."""

    def watch() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGKILL)

    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are the main thread's
    try:
        threading.Thread(target=watch, name="toymq-parent", daemon=True).start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
