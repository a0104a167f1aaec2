"""Commands: one value per verb, a closed union. Contract: protocol.md, "Commands". Their header lines: ``header_lines``."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from toymq_py.consumer_options import Mode, Start
from toymq_py.errors import RequestError
from toymq_py.failure import Failure
from toymq_py.protocol.frames import DEFAULT_FETCH_BYTES
from toymq_py.records import IdRange, Shape


@dataclass(frozen=True, slots=True)
class Hello:
    """Greet the broker: the protocol version, and the token where one is needed."""

    version: int
    auth: str | None = field(default=None, repr=False)
    name: str | None = None


@dataclass(slots=True)  # frozen ones take three times as long to make, and there is one a PUB
class Publish:
    """A run of consecutive PUBs to one topic; one PUB if ``hdr`` is set.

    ``keys[i]`` is b"" for none. The first ``hdr`` bytes of a body are its header block. ``delays_ms``, ``ttls_ms`` and ``seqs``
    have one item for each PUB, or are None. With ``seqs`` every key names a producer. ``shape`` is the common length of all
    keys and of all bodies, None where it is not known. ``routes`` choose partitions; b"" for none.
    """

    topic: str
    keys: list[bytes]
    bodies: list[bytes]
    hdr: int = 0
    delays_ms: list[int] | None = None
    ttls_ms: list[int] | None = None
    seqs: list[int] | None = None
    shape: Shape | None = None
    routes: list[bytes] | None = None


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Deliver messages of a topic or pattern to this session. ``lease``: a number by which NACK and TOUCH name the leases of
    this subscription."""

    topic: str
    consumer: str
    window: int | None = None
    visibility_ms: int | None = None
    start: Start | None = None
    mode: Mode | None = None
    lease: int | None = None


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """End a subscription; its leased messages become ready again. ``uncounted``: the application had none of them, so none
    counts an attempt."""

    topic: str
    consumer: str
    uncounted: bool = False


@dataclass(frozen=True, slots=True)
class Held:
    """Ask how many messages a subscription holds, and which of them its application most likely works on. ``uncounted``: from
    now on, whether the loss of the session counts no attempt here, because the message that counts is at another worker or
    group; None changes nothing."""

    topic: str
    consumer: str
    uncounted: bool | None = None


@dataclass(frozen=True, slots=True)
class Pull:
    """Lease up to ``max_count`` messages, and wait up to ``wait_ms`` for the first. ``lease``: see ``Subscribe``; ``mode``:
    ``shared``, ``keyed``, or as the consumer was last used."""

    topic: str
    consumer: str
    max_count: int
    wait_ms: int = 0
    visibility_ms: int | None = None
    lease: int | None = None
    mode: Mode | None = None


@dataclass(slots=True)
class Ack:
    """Mark leased messages as done."""

    topic: str
    consumer: str
    ids: tuple[IdRange, ...]
    sync: bool = False


@dataclass(frozen=True, slots=True)
class Nack:
    """Give leased messages back, after ``delay_ms`` or as dead letters; with ``uncounted`` at once, and the delivery is no
    attempt. With ``lease`` only those that this SUB or PULL has leased."""

    topic: str
    consumer: str
    ids: tuple[IdRange, ...]
    delay_ms: int | None = None
    dead: bool = False
    failure: Failure | None = None
    uncounted: bool = False
    lease: int | None = None


@dataclass(frozen=True, slots=True)
class Touch:
    """Extend leases; with ``lease`` only those of this SUB or PULL."""

    topic: str
    consumer: str
    ids: tuple[IdRange, ...]
    visibility_ms: int | None = None
    lease: int | None = None


Settlement = Ack | Nack | Touch
"""A command of a consumer that settles messages, or extends their leases."""


@dataclass(slots=True)
class SettlementRun:
    """A run of consecutive ACKs, NACKs or TOUCHes of one id each that differ only in their id. Each has its own reply. Only the
    server uses it."""

    command: Settlement
    """The first command of the run."""
    ids: list[int]

    @property
    def topic(self) -> str:
        return self.command.topic

    @property
    def consumer(self) -> str:
        return self.command.consumer

    def each(self) -> Iterator[Settlement]:
        """The commands of the run, one by one."""
        return (replace(self.command, ids=((msg_id, msg_id),)) for msg_id in self.ids)


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop deliveries to this session."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Continue deliveries to this session."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """Read records by id, without a consumer."""

    topic: str
    from_id: int
    max_count: int
    max_bytes: int = DEFAULT_FETCH_BYTES
    wait_ms: int = 0
    incarnation: str | None = None


@dataclass(frozen=True, slots=True)
class Offsets:
    """Ask for the first and the next id of a topic, or for the first id at a time; and for its incarnation."""

    topic: str
    at_ms: int | None = None
    incarnation: bool = False


@dataclass(frozen=True, slots=True)
class Create:
    """Create a topic with settings."""

    topic: str
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Config:
    """Change settings of a topic; without any, show them."""

    topic: str
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a topic with its messages and consumers."""

    topic: str


@dataclass(frozen=True, slots=True)
class Purge:
    """Drop the messages of a topic."""

    topic: str


@dataclass(frozen=True, slots=True)
class Seek:
    """Move a consumer to a position. ``creates``: create the consumer there if it does not exist; without it, a missing
    consumer is an error."""

    topic: str
    consumer: str
    start: Start
    creates: bool = True


@dataclass(frozen=True, slots=True)
class Forget:
    """Delete a consumer."""

    topic: str
    consumer: str


@dataclass(frozen=True, slots=True)
class Redrive:
    """Move dead letters back to the topic that they came from."""

    topic: str
    ids: tuple[IdRange, ...] | None = None
    max_count: int | None = None


@dataclass(frozen=True, slots=True)
class Topics:
    """Describe all topics, or those that match a pattern."""

    pattern: str | None = None


@dataclass(frozen=True, slots=True)
class Describe:
    """Describe one topic."""

    topic: str


@dataclass(frozen=True, slots=True)
class Stats:
    """Ask for the broker's statistics. ``partial``: answer even if a worker or a group does not."""

    partial: bool = False


@dataclass(frozen=True, slots=True)
class Cluster:
    """Ask for the workers of this broker. ``moved``: from now on refuse a topic of another worker with MOVED, in place of
    passing the command on."""

    moved: bool = False


@dataclass(frozen=True, slots=True)
class Ping:
    """Ask for a PONG."""


@dataclass(frozen=True, slots=True)
class Quit:
    """End the session after its replies."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """A command that could not be parsed; its error is answered in its place.

    ``publish``: topic, producer and sequence of a PUB that has them. ``other_protocol``: the client speaks HTTP, TLS or AMQP,
    so a token would not help it.
    """

    error: RequestError
    publish: tuple[str, bytes, int] | None = None
    other_protocol: bool = False


Command = (
    Hello | Publish | Subscribe | Unsubscribe | Held | Pull | Settlement | SettlementRun | Pause | Resume | Fetch | Offsets
    | Create | Config | Delete | Purge | Seek | Forget | Redrive | Topics | Describe | Stats | Cluster | Ping | Quit | Rejected
)  # fmt: skip
