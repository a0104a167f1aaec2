"""The options of ``connect``, for both clients."""

import logging
import secrets
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from random import Random

from toymq import arguments
from toymq.arguments import Seconds, number_of_seconds
from toymq.backoff import Backoff
from toymq.message import Delivery, HeaderBlock, Receipt, format_headers
from toymq.url import Address, is_token
from toymq_py.errors import BadArgument, ConfigError, ToymqError
from toymq_py.protocol import Hello, encode_command
from toymq_py.protocol.frames import PROTOCOL_VERSION
from toymq_py.records import PRODUCER_PREFIX
from toymq_py.units import DURATION_MS_MAX

OUTSTANDING_BYTES_MAX = 8 * 1024 * 1024
"""Unanswered payload beyond which a publish waits. Enough for the disk's next syncs, little for a process."""
UNANSWERED_MAX = 65_536
"""Unanswered commands on one connection; beyond that publishes wait. Bounds the memory that a hung broker costs."""
DEFAULT_VISIBILITY_S = 30.0
"""The visibility that auto-extend assumes when the subscription names none (delivery.md)."""
GOODBYE_S = 1.0
"""Time for the broker to read what a closing client sent."""
DRAIN_S = 5.0
"""Time that the end of a client's block waits for handlers and answers."""
RECEIVE_BYTES = 256 * 1024
KEEPALIVE_IDLE_S, KEEPALIVE_PROBES = 15, 3
"""The probes of an idle connection: a dead peer is noticed after a minute, as the broker notices us (delivery.md)."""
USER_TIMEOUT_MS = 30_000
"""The kernel's time-out for unacknowledged bytes, which also ends a connection that the other end does not read. A broker
reads, unlike a client in a long handler; one that takes nothing for so long is overloaded, and what had no reply is sent again
on the next connection."""
SILENT_S = 5.0
"""With several addresses: a broker that owes an answer and says nothing for so long is left for the next one. A process that is
paused closes no connection, its system still acknowledges what it gets, and in a cluster another node leads by then."""
SILENCE_LOOK_S = 1.0
QUICK_IDLE_S = 3
QUICK_USER_TIMEOUT_MS = 6_000
"""The kernel's time-out where there is another address: a machine that is down is left after six to nine seconds."""


@dataclass(frozen=True, slots=True)
class Connected:
    """Event: the broker answered HELLO. After an outage it comes when every connection of the client is back."""

    address: str


@dataclass(frozen=True, slots=True)
class Disconnected:
    """Event: a connection was lost; the client reconnects by itself."""

    address: str
    reason: str


Event = Connected | Disconnected
OnEvent = Callable[[Event], None]
InjectHeaders = Callable[[dict[str, str]], object]
"""Adds headers to each publish: ``opentelemetry.propagate.inject`` fits."""
PublishEnded = Callable[[Receipt | ToymqError | None], None]
"""Called once with a publish's outcome; None: the caller stopped waiting."""


class MessageTracing(ABC):
    """Interface of the client to a tracer; ``toymq.tracing.Tracing`` implements it with OpenTelemetry."""

    @abstractmethod
    def publishing(self, topic: str, headers: Mapping[str, str] | None) -> tuple[dict[str, str], PublishEnded]:
        """Start the span of a publish. Returns: the message's headers with the trace context, and a callback for the
        outcome."""

    @abstractmethod
    def created(self, topic: str, headers: Mapping[str, str] | None) -> dict[str, str]:
        """Start and end the span of one message of ``pub_many``. Returns: the message's headers with the trace context."""

    @abstractmethod
    def processing(self, message: Delivery, consumer: str) -> AbstractContextManager[None]:
        """Return a context manager that is the span of a message's handler."""


logger = logging.getLogger("toymq")


TIMES = ("timeout_s", "connect_timeout_s", "wait_s", "backoff_min_s", "backoff_max_s")


def times(
    timeout_s: Seconds, connect_timeout_s: Seconds, wait_s: Seconds | None, backoff_min_s: Seconds, backoff_max_s: Seconds
) -> tuple[float, float, float | None, float, float]:
    """Convert the durations of ``Options`` to seconds. Raises: TypeError, BadArgument."""
    given = (timeout_s, connect_timeout_s, 0.0 if wait_s is None else wait_s, backoff_min_s, backoff_max_s)
    a, b, c, d, e = map(number_of_seconds, TIMES, given)
    return a, b, None if wait_s is None else c, d, e


@dataclass(frozen=True, slots=True)
class Options:
    """The options of ``connect``, checked when they are made."""

    addresses: tuple[Address, ...]
    name: str | None
    tls: ssl.SSLContext | None
    timeout_s: float
    connect_timeout_s: float
    wait_s: float | None
    backoff_min_s: float
    backoff_max_s: float
    idempotent: bool
    on_event: OnEvent | None
    inject_headers: InjectHeaders | None
    tracing: MessageTracing | None
    random: Random = field(repr=False)
    describe_errors: bool = True
    lost: Callable[[], ToymqError | None] = field(default=lambda: None, repr=False)
    """Set by ``toymq.open``: returns why the directory is not the one that was opened; None while it is."""

    def __post_init__(self) -> None:
        """Check the options. Raises: ConfigError, BadArgument, TypeError."""
        for what in TIMES:
            seconds = getattr(self, what)
            if what == "wait_s" and seconds is None:
                continue
            above = seconds > 0 or (what == "wait_s" and seconds == 0)
            if not above or seconds * 1000 > DURATION_MS_MAX:
                least = "0" if what == "wait_s" else "more than 0"
                raise ConfigError(f"invalid {what} {seconds:g}: write {least} to ten years, in seconds")
        if self.name is not None:
            arguments.word("name", self.name)
        arguments.instance("ssl", self.tls, ssl.SSLContext, "an ssl.SSLContext")
        arguments.instance("tracing", self.tracing, MessageTracing, "a toymq.tracing.Tracing")
        arguments.instance("random", self.random, Random, "a random.Random")
        arguments.function("on_event", self.on_event)
        arguments.function("inject_headers", self.inject_headers)
        arguments.flag("idempotent", self.idempotent)
        arguments.flag("describe_errors", self.describe_errors)
        for address in self.addresses:
            if address.token is not None and not is_token(address.token):
                raise BadArgument("invalid token in urls: write printable ASCII without a space")
        if self.tls is not None and not all(address.tls for address in self.addresses):
            raise ConfigError("ssl needs toymqs:// URLs: toymq:// connects without TLS")
        self.backoff()
        for address in self.addresses:
            encode_command(self.hello(address))

    def backoff(self) -> Backoff:
        return Backoff(self.backoff_min_s, self.backoff_max_s, self.random)

    def hello(self, address: Address) -> Hello:
        return Hello(PROTOCOL_VERSION, address.token, self.name)

    def check_not_lost(self) -> None:
        """Check, before each attempt to connect, that the directory of ``toymq.open`` is still there. Raises: DirectoryLost:
        another process at that path would have other data."""
        if (lost := self.lost()) is not None:
            raise lost

    def notify(self, event: Event) -> None:
        """Call ``on_event``. An exception in it is logged and does not end the connection."""
        if self.on_event is not None:
            try:
                self.on_event(event)
            except Exception:
                logger.exception("on_event failed")

    def header_block(self, headers: Mapping[str, str] | None) -> bytes:
        """Encode headers, with those that ``inject_headers`` adds. Raises: BadArgument."""
        if self.inject_headers is not None:
            headers = dict(arguments.headers(headers)) if headers is not None else {}
            self.inject_headers(headers)
        return format_headers(headers) if headers is not None else b""

    @property
    def adds_headers(self) -> bool:
        """Whether a message without headers gets some, by tracing or ``inject_headers``."""
        return self.tracing is not None or self.inject_headers is not None

    def header_block_of_many(self, topic: str) -> HeaderBlock:
        """Return a function that makes the header block of each message of ``pub_many``."""
        tracing = self.tracing
        if tracing is None:
            return self.header_block

        def traced(headers: Mapping[str, str] | None) -> bytes:
            if headers is not None:
                arguments.headers(headers)
            return self.header_block(tracing.created(topic, headers))

        return traced

    def producer(self) -> str | None:
        """Make a unique producer name, short because each record contains it; None if publishes are not numbered
        (``idempotent=False``)."""
        return f"{PRODUCER_PREFIX.decode()}{secrets.token_urlsafe(6)}" if self.idempotent else None

    def tls_of(self, address: Address) -> ssl.SSLContext | None:
        if not address.tls:
            return None
        return self.tls if self.tls is not None else ssl.create_default_context()
