"""Forks child processes that notice the death of their parent, kill -9 included. For supervisors: no thread and no loop in the
parent. ``end_with_parent`` is for a program that another one starts.

The parent has imported all that its children need, so that a new child needs no imports.
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
    """A pipe whose reading end becomes readable when the process that made it has ended: no other process holds its writing
    end."""

    def __init__(self) -> None:
        self.lives, self._holds = os.pipe()

    def inherited(self) -> None:
        """Close the writing end, in a child: only the parent may hold it."""
        os.close(self._holds)

    def close(self) -> None:
        os.close(self.lives)
        os.close(self._holds)


def fork(run: Callable[[int], int], line: LifeLine) -> int:
    """Run ``run`` in a child, which gets the line's descriptor and returns its exit code. Returns: the process id.

    Assumes that PASSED_ON are blocked: a signal before the child is known would be lost. Raises: OSError (no process).
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
    """An exit code, or -N for signal N, in words."""
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"has exited with {code}"


def end_with_parent() -> None:
    """SIGKILL this process when its standard input ends: a pipe whose other end its parent alone holds. On Linux a parent's
    death could be a signal, but that comes at the end of the thread which has started the process."""

    def watch() -> None:
        while os.read(0, 1):
            pass
        os.kill(os.getpid(), signal.SIGKILL)

    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are the main thread's
    try:
        threading.Thread(target=watch, name="toymq-parent", daemon=True).start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
