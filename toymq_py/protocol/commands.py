"""Commands: one value per verb, a closed union. Contract: protocol.md, "Commands". Their header lines: ``header_lines``."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from toymq_py.consumer_options import Mode, Start
from toymq_py.errors import RequestError
from toymq_py.failure import Failure
from toymq_py.protocol.frames import (
    DEFAULT_FETCH_BYTES,
)
from toymq_py.records import IdRange, Shape


@dataclass(frozen=True, slots=True)
class Hello:
    version: int
    auth: str | None = field(default=None, repr=False)
    name: str | None = None


@dataclass(slots=True)  # frozen ones take three times as long to make, and there is one a PUB
class Publish:
    """A run of consecutive PUBs to one topic. With ``hdr`` it is one record.

    ``keys[i]`` is b"" for none. The first ``hdr`` bytes of a body are its header block. ``delays_ms`` and ``ttls_ms`` say it
    of every PUB, or of none. With ``seqs`` every key names a producer, and ``seqs[i]`` is its sequence. ``shape`` is that of
    all keys and bodies where it is known; None says nothing.
    """

    topic: str
    keys: list[bytes]
    bodies: list[bytes]
    hdr: int = 0
    delays_ms: list[int] | None = None
    ttls_ms: list[int] | None = None
    seqs: list[int] | None = None
    shape: Shape | None = None


@dataclass(frozen=True, slots=True)
class Subscribe:
    topic: str
    consumer: str
    window: int | None = None
    visibility_ms: int | None = None
    start: Start | None = None
    mode: Mode | None = None


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    topic: str
    consumer: str


@dataclass(frozen=True, slots=True)
class Pull:
    topic: str
    consumer: str
    max_count: int
    wait_ms: int = 0
    visibility_ms: int | None = None


@dataclass(slots=True)
class Ack:
    topic: str
    consumer: str
    ids: tuple[IdRange, ...]
    sync: bool = False


@dataclass(frozen=True, slots=True)
class Nack:
    topic: str
    consumer: str
    ids: tuple[IdRange, ...]
    delay_ms: int | None = None
    dead: bool = False
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Touch:
    topic: str
    consumer: str
    ids: tuple[IdRange, ...]
    visibility_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    pass


@dataclass(frozen=True, slots=True)
class Resume:
    pass


@dataclass(frozen=True, slots=True)
class Fetch:
    topic: str
    from_id: int
    max_count: int
    max_bytes: int = DEFAULT_FETCH_BYTES
    wait_ms: int = 0


@dataclass(frozen=True, slots=True)
class Offsets:
    topic: str
    at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Create:
    topic: str
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Config:
    topic: str
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Delete:
    topic: str


@dataclass(frozen=True, slots=True)
class Purge:
    topic: str


@dataclass(frozen=True, slots=True)
class Seek:
    topic: str
    consumer: str
    start: Start


@dataclass(frozen=True, slots=True)
class Forget:
    topic: str
    consumer: str


@dataclass(frozen=True, slots=True)
class Redrive:
    topic: str
    ids: tuple[IdRange, ...] | None = None
    max_count: int | None = None


@dataclass(frozen=True, slots=True)
class Topics:
    pattern: str | None = None


@dataclass(frozen=True, slots=True)
class Describe:
    topic: str


@dataclass(frozen=True, slots=True)
class Stats:
    pass


@dataclass(frozen=True, slots=True)
class Ping:
    pass


@dataclass(frozen=True, slots=True)
class Quit:
    pass


@dataclass(frozen=True, slots=True)
class Rejected:
    """One command that was refused before it was understood; it takes that command's place in the order.

    ``publish``: topic, producer and sequence, where it was a PUB that says them.
    """

    error: RequestError
    publish: tuple[str, bytes, int] | None = None


Command = (
    Hello | Publish | Subscribe | Unsubscribe | Pull | Ack | Nack | Touch | Pause | Resume | Fetch | Offsets | Create
    | Config | Delete | Purge | Seek | Forget | Redrive | Topics | Describe | Stats | Ping | Quit | Rejected
)  # fmt: skip
