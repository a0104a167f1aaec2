"""The history of a run, one operation per line of ``history.jsonl``. Contract: reliability.md.

Owns the format, its reader and its writer; knows neither brokers nor guarantees.
"""

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from toymq_py.errors import DamagedData

Op = Literal[
    "connect", "disconnect", "pub", "sub", "pull", "deliver", "ack", "nack",
    "declare", "config", "settings", "redrive", "purge", "delete", "dropped",
    "start", "kill", "stop", "pause", "resume", "full", "free", "cut", "clock", "stalled",
    "drained",
]  # fmt: skip
CONFIRM = "confirm"
OF_A_LIFE = "~"
"""The mark between the name of a connection and the number of the worker's life in which a topic's view has it (``views``)."""
Result = Literal["ok", "dup", "err", "unknown"]


@dataclass(frozen=True, slots=True)
class Event:
    """One operation, written when its outcome is known.

    ``process`` is the connection: ``name.n`` is the n-th connection of a client. It begins with "connect" and ends with
    "disconnect", whichever side closed it; only then does the client's next connection begin. ``result`` "unknown": the
    connection was lost before the answer. A delivery is "ok"; so is an ack or nack that had an effect. ``sync``: the ack waited
    for the disk. ``sent_ns``: when a command was sent. ``visibility_ms`` and ``retain_acked_for_ms``: options of a started
    broker. From "pause" to "resume" the broker was frozen, from "full" to "free" its disk was full. "drained": consumers have
    seen everything; only unanswered commands and disconnects follow.

    A "pull" precedes the deliveries that it leased. ``delay_ms`` and ``ttl_ms`` are those of a publish; with ``seq`` its key is
    the producer's name and that number, and the id of a "dup" is the producer's highest. A delivered dead letter has
    ``origin_id`` and ``origin_consumer``, a redriven message the latter. ``note`` of a "declare" is what may happen to the
    messages of a topic or pattern: "drop" (limits, retention), "delete"; or "share" or "keyed" of a consumer. "config" has a
    setting and the value it was set to, "settings" the value that was read. ``group``: group key of a message. ``count``:
    messages that a "redrive" moved, a "purge" or "delete" removed, or a limit dropped ("dropped"); in a dead letter, its number
    of attempts. ``ahead_ns``: how far a "clock" is set ahead from then on.

    A "start" with ``workers`` starts that many worker processes (``views``); a "kill", "pause" or "resume" with ``worker``
    concerns that worker alone.

    A "pub" with the note "confirm" was published over AMQP, whose confirms contain no id.

    Programs with the real toymq clients (``users``) record the same events. Their "sub" has the note "buffered"; an ack that
    waits for no answer is "unknown". "stalled": such a client had neither a delivery nor an answer since the broker started,
    until long after the other clients had done their work.
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
    visibility_ms: int | None = None
    retain_acked_for_ms: int | None = None
    note: str | None = None
    delay_ms: int | None = None
    ttl_ms: int | None = None
    seq: int | None = None
    dead: bool | None = None
    origin_id: int | None = None
    origin_consumer: str | None = None
    count: int | None = None
    ahead_ns: int | None = None
    group: str | None = None
    worker: int | None = None
    workers: int | None = None

    def to_json(self) -> str:
        """The event as one line of JSON, without fields that are not set."""
        return json.dumps({name: value for name, value in asdict(self).items() if value is not None})

    def __str__(self) -> str:
        return self.to_json()


_TYPES = {field.name: get_args(field.type) or (field.type,) for field in fields(Event)}
_CHOICES = {"op": get_args(Op), "result": get_args(Result)}
_NEEDED = {
    "pub": ("topic", "key", "digest"),
    "sub": ("topic", "consumer"),
    "deliver": ("topic", "consumer", "key", "digest", "id", "attempt"),
    "ack": ("topic", "consumer", "id"),
    "nack": ("topic", "consumer", "id"),
    "pull": ("topic", "consumer"),
    "declare": ("topic", "note"),
    "config": ("topic", "key", "note"),
    "settings": ("topic", "key", "note"),
    "redrive": ("topic",),
    "purge": ("topic",),
    "delete": ("topic",),
    "dropped": ("topic", "count"),
}
"""Required fields by ``op``, besides ``t_ns``, ``process`` and ``op``."""


def digest_of(payload: bytes) -> str:
    """Return the digest of a payload by which the checker compares payloads."""
    return hashlib.blake2b(payload, digest_size=8).hexdigest()


def parse(line: bytes) -> Event:
    """Parse a line; unknown fields are ignored. Raises: ValueError, with the reason."""
    try:
        found: Any = json.loads(line.decode())
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at column {error.colno}") from None
    if not isinstance(found, dict):
        raise ValueError("no JSON object")  # noqa: TRY004 (of the line, not of an argument)
    named = {name: value for name, value in found.items() if name in _TYPES}
    for name in ("t_ns", "process", "op", *_NEEDED.get(str(named.get("op")), ())):
        if named.get(name) is None:
            raise ValueError(f"no {name}")
    for name, value in named.items():
        if name in _CHOICES:
            if value not in _CHOICES[name]:
                raise ValueError(f"{name} cannot be {json.dumps(value)[:100]}")
        elif type(value) not in _TYPES[name]:  # True is not a number
            raise ValueError(f"{name} cannot be {json.dumps(value)[:100]}")
    event = Event(**named)
    if event.op == "pub" and event.result in ("ok", "dup") and event.id is None and event.note != CONFIRM:
        raise ValueError("no id")
    return event


def read(path: Path, took: Callable[[int], object] = lambda size: None) -> Iterator[Event]:
    """Yield the events of a file, in order; ``took`` is called with the length of each line, in bytes. Raises: OSError,
    DamagedData with file and line."""
    last_ns = 0
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            took(len(line))
            if not line.strip():
                continue
            try:
                event = parse(line)
            except ValueError as error:
                raise DamagedData(f"{path}:{number}: {error}") from None
            if event.t_ns < last_ns:
                raise DamagedData(f"{path}:{number}: t_ns {event.t_ns} is before that of the event above, {last_ns}")
            last_ns = event.t_ns
            yield event


class Recorder:
    """Stamps events with the time and passes them to ``sink``, in order."""

    def __init__(self, now_ns: Callable[[], int], sink: Callable[[Event], object]) -> None:
        """``now_ns`` must never go back: the order of a history is that of its stamps. Any thread may record."""
        self.now_ns = now_ns
        self._sink = sink
        self._turn = threading.Lock()

    def __call__(self, process: str, op: Op, result: Result = "ok", **rest: Any) -> None:
        """Record an event that happens now; ``rest``: other fields of ``Event``."""
        with self._turn:
            self._sink(Event(self.now_ns(), process, op, result, **rest))


def write(path: Path, events: Iterable[Event]) -> None:
    """Write a history. Raises: OSError."""
    with path.open("w") as file:
        for event in events:
            file.write(event.to_json() + "\n")
