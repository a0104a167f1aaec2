"""Raises an exception as a signal handler would, at a chosen place of the client's code.

CPython runs signal handlers at the start of a function, at the start of each loop iteration, and after a call of C code; a C
call that waits also runs them. ``Interrupter`` counts these places while its block runs, and raises at one of them.
"""

import dis
import sys
from types import CodeType, FrameType, TracebackType
from typing import Any

from tests.support.broker_process import ROOT

CLIENT = str(ROOT / "clients" / "toymq")
CALLS = {name for name in dis.opname if name.startswith("CALL") and not name.startswith("CALL_INTRINSIC")}
BACKWARD = {name for name in dis.opname if name.startswith("JUMP_BACKWARD")}


class Interrupted(BaseException):
    """The exception that is raised, like a KeyboardInterrupt, which would end the test run where it is not caught."""


class TimeLimit(Interrupted, TimeoutError):
    """The exception that is raised, like that of a handler of SIGALRM: a TimeoutError is an OSError, as are errors of
    sockets."""


class Interrupter:
    """Counts the places, raises ``Interrupted`` at place ``at``, and suppresses it when it leaves the block. A context
    manager."""

    def __init__(self, at: int, error: type[Interrupted] = Interrupted) -> None:
        self._error = error
        self.places = 0
        self.raised_in = ""
        self.swallowed = False
        """It did not leave the block."""
        self._at = at
        self._before: dict[FrameType, str] = {}
        self._names: dict[CodeType, bytes] = {}

    def __enter__(self) -> "Interrupter":
        sys.settrace(self._trace)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        sys.settrace(None)
        self._before.clear()
        self.swallowed = bool(self.raised_in) and not isinstance(error, Interrupted)
        return isinstance(error, Interrupted)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if event == "call":
            if not code.co_filename.startswith(CLIENT):
                return None
            caller = frame.f_back
            if caller in self._before and code.co_name != "__init__":
                self._before[caller] = ""  # the interpreter does not look for signals where a Python function returns
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            self._place(frame)
        elif event == "opcode":
            names = self._names.get(code) or self._names.setdefault(code, code.co_code)
            name = dis.opname[names[frame.f_lasti]]
            if name in CALLS or self._before.get(frame, "") in CALLS | BACKWARD:
                self._place(frame)
            self._before[frame] = name
        elif event == "return":
            self._before.pop(frame, None)
        return self._trace

    def _place(self, frame: FrameType) -> None:
        at, self.places = self.places, self.places + 1
        if at == self._at:
            self.raised_in = f"{frame.f_code.co_filename.removeprefix(CLIENT)}:{frame.f_lineno} in {frame.f_code.co_name}"
            raise self._error(self.raised_in)  # which ends the tracing
