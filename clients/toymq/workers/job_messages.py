"""The messages between a worker and a process that calls a job's function (``job_process``, ``job_child``).

    worker ── Request ──► process          over a socket pair
    worker ◄── LogLine* … Answer ──

They consist of texts, bytes and numbers: no object of the application is pickled, so no pickling can fail.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a function, by which another process finds it.

    Attributes:
        module, qualname: as of the function.
        topic: of its job, so that a later function of the same name is not taken for it.
    """

    module: str
    qualname: str
    topic: str


@dataclass(frozen=True, slots=True)
class Request:
    """A message to call the function for. ``wanted``: its result is needed."""

    topic: str
    msg_id: int
    attempt: int
    ts_ns: int
    key: bytes
    headers: bytes
    payload: bytes
    wanted: bool


@dataclass(frozen=True, slots=True)
class Done:
    """The function returned. ``reply``: the message of its result, where it is wanted."""

    reply: bytes | None


@dataclass(frozen=True, slots=True)
class Refused:
    """The payload does not fit the function, which was not called."""

    text: str


@dataclass(frozen=True, slots=True)
class Raised:
    """The function raised an exception. ``kinds``: module and qualified name of its class and of the base classes, in order."""

    kinds: tuple[tuple[str, str], ...]
    text: str
    traceback: str


@dataclass(frozen=True, slots=True)
class Unusable:
    """The process cannot find the function. ``text`` is for a terminal."""

    text: str


Answer = Done | Refused | Raised


@dataclass(frozen=True, slots=True)
class LogLine:
    """A record of the process's log: what ``logging.makeLogRecord`` takes."""

    fields: dict[str, Any]
