"""The messages between a worker and a process that calls a job's function (``job_process``, ``job_child``).

    worker ── Request ──► process          over a socket pair
    worker ◄── LogLine* … Answer ──

The messages consist of texts, bytes and numbers: no object of the application is pickled, so no pickling can fail.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job's function is defined, so that another process can import it.

    Attributes:
        module, qualname: ``__module__`` and ``__qualname__`` of the function.
        topic: the job's topic, so that a later function of the same name is not taken for it.
    """

    module: str
    qualname: str
    topic: str


@dataclass(frozen=True, slots=True)
class Request:
    """Asks the process to call the function for a message. ``wanted``: whether to send back the result."""

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
    """The function returned. ``reply``: its result as an encoded message, if that is wanted."""

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
    """The process cannot import the function. ``text`` is the error for a terminal."""

    text: str


Answer = Done | Refused | Raised


@dataclass(frozen=True, slots=True)
class LogLine:
    """A log record of the process, as the fields that ``logging.makeLogRecord`` takes."""

    fields: dict[str, Any]
