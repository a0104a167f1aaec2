"""Messages of a client: publishes, receipts, deliveries, headers, and ranges of ids."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from toymq import arguments
from toymq.arguments import Seconds
from toymq.codecs import AnyCodec, decoded
from toymq_py.errors import BadArgument, PayloadTooLarge
from toymq_py.protocol import MessagePush, publish_options, publish_sequence
from toymq_py.protocol.frames import parse_ids
from toymq_py.protocol.header_lines import SEQUENCE_MAX
from toymq_py.records import PRODUCER_PREFIX, IdRange
from toymq_py.units import check_delay

RANGES_PER_LINE = 80
"""Ranges of 20-digit ids that fit into a header line of 4096 bytes beside the names."""
RANGES_BESIDE_A_FAILURE = 5
"""Ranges that fit beside the texts of a failure."""
Key = str | bytes
"""The key of a publish: 1 to 512 printable ASCII characters without space; the key ``-`` alone is reserved."""


class Sequenced(NamedTuple):
    """A message with a producer's name and ascending number, by which the broker recognises a repeat, also after a restart. The
    first ``hdr`` bytes of the body are its header block, ``Name: value`` lines."""

    producer: str
    seq: int
    body: bytes
    hdr: int = 0
    delay_ms: int | None = None
    ttl_ms: int | None = None
    route: bytes = b""
    """The route, which chooses the partition of a partitioned topic."""


Item = bytes | tuple[Key | None, bytes] | tuple[Key | None, bytes, Mapping[str, str] | None] | Sequenced
"""A message for ``pub_many``: a payload, (key, payload), (key, payload, headers), or a message numbered by its producer."""
Settings = Mapping[str, float | str]
"""Settings of a topic by name (delivery.md). A duration is seconds or a text, ``"2m"``; a size is bytes or ``"64MiB"``;
``"default"`` unsets."""


@dataclass(slots=True)
class Receipt:
    """Proof that a message is on stable storage.

    Attributes:
        msg_id: the message's number in its topic.
        duplicate: an earlier attempt had stored the message. If it has no key, ``msg_id`` is then the id of this client's
            newest message in the topic: this message or a later one.
    """

    msg_id: int
    duplicate: bool


class Delivery:
    """One delivery of a message, with the fields of both clients' messages.

    Attributes:
        topic: where it was published.
        id: its number in the topic.
        attempt: one more than the attempts of its consumer that count, so from 1. A message may come again with the same one.
        ts_ns: when it was published, nanoseconds since the epoch.
        key: b"" for none, also where a client numbered the publish.
        payload: without the headers.
    """

    __slots__ = ("_headers", "attempt", "id", "key", "payload", "topic", "ts_ns")

    def __init__(self, push: MessagePush) -> None:
        self.topic = push.topic
        self.id = push.msg_id
        self.attempt = push.attempt
        self.ts_ns = push.ts_ns
        key = push.key
        self.key = key if not key or not key.startswith(PRODUCER_PREFIX) else b""
        self.payload = push.payload
        self._headers = push.headers

    @property
    def headers(self) -> dict[str, str]:
        """Headers, as a new dict; ``traceparent`` is one when the publisher sent it."""
        return parse_headers(self._headers) if self._headers else {}

    def json(self) -> Any:
        """The payload as a JSON document. Raises: BadArgument when it is not JSON."""
        return decoded("json", self.payload, {})

    def value(self, codec: AnyCodec | None = None) -> Any:
        """The payload as a value, by its content type: JSON, MessagePack, or its bytes without one.

        Args:
            codec: used instead of the content type: ``"json"``, ``"msgpack"``, a ``toymq.Codec``, or a function of the bytes.

        Raises: BadArgument for a payload that the codec cannot decode, or an unknown content type.
        """
        return decoded(codec, self.payload, {} if codec is not None else self.headers)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(topic={self.topic!r}, id={self.id}, attempt={self.attempt}, payload={self.payload!r})"


def parse_headers(block: bytes) -> dict[str, str]:
    """``Name: value`` lines as a dict; other lines are ignored."""
    headers = {}
    for line in block.decode("utf-8", "replace").split("\n"):
        name, colon, value = line.partition(":")
        if colon:
            headers[name] = value.removeprefix(" ")
    return headers


def format_headers(headers: Mapping[str, str]) -> bytes:
    """Encode headers as ``Name: value`` lines, which ``parse_headers`` reads. Raises: TypeError; BadArgument for headers that a
    reader would parse differently."""
    arguments.headers(headers)
    try:
        return b"".join(f"{name}: {value}\n".encode() for name, value in headers.items())
    except UnicodeEncodeError:
        raise BadArgument("invalid headers: a surrogate cannot be encoded as UTF-8") from None


def to_ranges(ids: Iterable[int]) -> list[IdRange]:
    """Convert ids, in any order, to ascending ranges."""
    unique = sorted(set(ids))
    if unique and unique[-1] - unique[0] + 1 == len(unique):
        return [(unique[0], unique[-1])]
    ranges: list[IdRange] = []
    for msg_id in unique:
        if ranges and ranges[-1][1] + 1 == msg_id:
            ranges[-1] = (ranges[-1][0], msg_id)
        else:
            ranges.append((msg_id, msg_id))
    return ranges


def parse_ranges(text: str) -> tuple[IdRange, ...]:
    """Parse ranges of ids, ``7``, ``3-9`` or ``3-9,12,20-31``, which must ascend. Raises: BadArgument."""
    return parse_ids(text)


def lines_of(ranges: Sequence[IdRange], count: int = RANGES_PER_LINE) -> Iterator[tuple[IdRange, ...]]:
    """Split ranges of ids into groups that each fit into one header line of the protocol."""
    for at in range(0, len(ranges), count):
        yield tuple(ranges[at : at + count])


BATCH_MAX = 256
"""Most messages of ``pub_many`` whose outcomes are awaited together."""
CHUNK_BYTES_MAX = 256 * 1024
"""Most payload of a chunk of ``pub_many``, its last message not counted."""
Outgoing = tuple[bytes, bytes, bytes]
"""Key or b"", body (header block and payload), options of the PUB."""


HeaderBlock = Callable[[Mapping[str, str] | None], bytes]
"""Makes the header block of a message from its own headers."""


def chunks(
    items: Iterable[Item], size: int, body_bytes_max: int, header_block: HeaderBlock, adds_headers: bool,
    delay_ms: int | None, ttl_ms: int | None,
) -> Iterator[tuple[list[Outgoing], Exception | None]]:  # fmt: skip
    """Encode the items of ``pub_many`` and yield them in lists of up to ``size``. At an invalid item, or when ``items`` raises,
    the last list comes with that error: the items before it are still published.

    Args:
        adds_headers: whether ``header_block`` adds headers also to a message that has none.
        delay_ms, ttl_ms: for items that are not ``Sequenced``; those have their own, and their own header block.

    Raises: BadArgument for an invalid delay or ttl.
    """
    plain = publish_options(0, delay_ms, ttl_ms)
    chunk: list[Outgoing] = []
    total = 0
    failure: Exception | None = None
    try:
        for item in items:
            key: Key | None
            headers: Mapping[str, str] | None = None
            if isinstance(item, Sequenced):
                key, body = item.producer, item.body
            elif not isinstance(item, tuple):
                key, body = None, item
            elif len(item) == 2:
                key, body = item
            elif len(item) == 3:
                key, body, headers = item
            else:
                form = "an item of pub_many is a payload, (key, payload), (key, payload, headers) or Sequenced"
                raise TypeError(f"{form}, not {arguments.shown(item)}")  # noqa: TRY301 (with all others, below)
            body = arguments.payload_bytes(body)
            if isinstance(item, Sequenced):
                options = _sequenced_options(item)
            elif adds_headers or headers is not None:
                block = header_block(headers)
                body = block + body
                options = publish_options(len(block), delay_ms, ttl_ms)
            else:
                options = plain
            found = b"" if key is None else arguments.key_bytes(key), body, options
            if len(body) > body_bytes_max:
                raise too_large(body, body_bytes_max)  # noqa: TRY301
            chunk.append(found)
            total += len(body)
            if len(chunk) >= size or total > CHUNK_BYTES_MAX:
                full, chunk, total = chunk, [], 0  # first: a signal handler may raise behind the yield, too
                yield full, None
    except Exception as error:  # noqa: BLE001 (of the caller's iterable: the receipts of what came before go first)
        failure = error
    if chunk or failure is not None:
        yield chunk, failure


def outgoing(
    header_block: HeaderBlock, payload: bytes, key: Key | None,
    headers: Mapping[str, str] | None, delay: Seconds | None, ttl: Seconds | None, seq: int | None, body_bytes_max: int,
    route: Key | None = None,
) -> Outgoing:  # fmt: skip
    """Encode the message of one ``pub``. Raises: TypeError, BadArgument, PayloadTooLarge."""
    block = header_block(headers)
    name = arguments.key_bytes(key) if key is not None else b""
    times = arguments.publish_times(delay, ttl)
    options = publish_options(len(block), *times, b"" if route is None else arguments.route_bytes(route))
    if seq is not None:
        options += publish_sequence(name, arguments.whole("seq", seq, 0, SEQUENCE_MAX))
    body = block + arguments.payload_bytes(payload)
    if len(body) > body_bytes_max:
        raise too_large(body, body_bytes_max)
    return name, body, options


def _sequenced_options(item: Sequenced) -> bytes:
    """Encode the options of a message that is numbered by its producer. Raises: TypeError, BadArgument."""
    try:
        check_delay(item.delay_ms, item.ttl_ms)
        options = publish_options(item.hdr, item.delay_ms, item.ttl_ms, item.route)
        return options + publish_sequence(item.producer.encode(), item.seq)
    except (AttributeError, TypeError):
        raise TypeError(f"the fields of {arguments.shown(item)} are a str, int, bytes, and int or None") from None


def too_large(body: bytes, bytes_max: int) -> PayloadTooLarge:
    """Make the error with which the broker refuses a payload that is too large, without sending the payload."""
    return PayloadTooLarge(f"{len(body)} bytes with headers; this broker takes at most {bytes_max} (--max-payload)")
