"""What happened, an operation a line. Contract: reliability.md, the form of ``history.jsonl``.

Owns the form and its reading and writing; knows neither brokers nor invariants.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from toymq_py.errors import DamagedData

Op = Literal["pub", "deliver", "ack", "sub", "kill", "stop", "start", "pause", "cut", "drained"]
Result = Literal["ok", "dup", "err", "unknown"]


@dataclass(frozen=True, slots=True)
class Event:
    """One operation, written when its outcome is known.

    ``process`` is who did it, ``name.n`` for the n-th connection of a client. ``result`` "unknown": the connection was lost
    before the answer. A delivery is "ok"; an ack that the broker answered is "ok". ``sync``: the ack asked for the disk.
    ``sent_ns``: when a publish or an ack was sent. "drained" ends a history whose consumers have seen all there is.
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


def write(path: Path, events: Iterable[Event]) -> None:
    """Raises: OSError."""
    with path.open("w") as file:
        for event in events:
            file.write(event.to_json() + "\n")
