"""What happened, an operation a line. Contract: reliability.md, the form of ``history.jsonl``.

Owns the form and its reading and writing; knows neither brokers nor invariants.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from toymq_py.errors import DamagedData

Op = Literal[
    "connect", "pub", "sub", "deliver", "ack",
    "start", "kill", "stop", "pause", "resume", "full", "free", "cut", "clock", "drained",
]  # fmt: skip
Result = Literal["ok", "dup", "err", "unknown"]


@dataclass(frozen=True, slots=True)
class Event:
    """One operation, written when its outcome is known.

    ``process`` is who did it, ``name.n`` for the n-th connection of a client, which begins with a "connect". ``result``
    "unknown": the connection was lost before the answer. A delivery is "ok"; an ack that the broker answered is "ok".
    ``sync``: the ack asked for the disk. ``sent_ns``: when a publish or an ack was sent. From "pause" to "resume" the broker
    was stopped, from "full" to "free" its disk took no more. "drained" ends a history whose consumers have seen all there is.
    """

    t_ns: int
    process: str
    op: Op
    result: Result = "ok"
    topic: str | None = None
    consumer: str | None = None
    key: str | None = None
    digest: str | None = None
    id: int | None = None
    attempt: int | None = None
    sync: bool | None = None
    sent_ns: int | None = None
    note: str | None = None

    def to_json(self) -> str:
        """One line, without what is not set."""
        return json.dumps({name: value for name, value in asdict(self).items() if value is not None})

    def __str__(self) -> str:
        return self.to_json()


_NAMES = {field.name for field in fields(Event)}


def digest_of(payload: bytes) -> str:
    """What stands for a payload in a history."""
    return hashlib.blake2b(payload, digest_size=8).hexdigest()


def parse(line: str, number: int) -> Event:
    """Raises: DamagedData, with the line's number."""
    try:
        found: dict[str, Any] = json.loads(line)
        return Event(**{name: value for name, value in found.items() if name in _NAMES})
    except (ValueError, TypeError, AttributeError) as error:
        raise DamagedData(f"line {number} of the history: {error}") from None


def read(path: Path) -> Iterator[Event]:
    """Events of a file, in order. Raises: OSError, DamagedData."""
    with path.open() as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield parse(line, number)


class Recorder:
    """Stamps events and hands them on, in order."""

    def __init__(self, now_ns: Callable[[], int], sink: Callable[[Event], object]) -> None:
        """``now_ns`` must never fall: the order of a history is that of its stamps."""
        self.now_ns = now_ns
        self._sink = sink

    def __call__(self, process: str, op: Op, result: Result = "ok", **rest: Any) -> None:
        """Record an event of now; ``rest`` are the other fields of ``Event``."""
        self._sink(Event(self.now_ns(), process, op, result, **rest))


def write(path: Path, events: Iterable[Event]) -> None:
    """Raises: OSError."""
    with path.open("w") as file:
        for event in events:
            file.write(event.to_json() + "\n")
