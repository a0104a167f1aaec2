"""Search a topic's log by id, key, header, time and text, newest first; show the state of one message at each consumer.

Contract: gateway.md; ADR 0147. A search reads the log backwards in chunks, within bounds, and tells how far it got. Nothing
is consumed, and nothing is kept between two requests: the cursor is a message id.
"""

import json
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from toymq_py.broker import Broker
from toymq_py.consumer_options import Start
from toymq_py.errors import BadArgument, BadName, NoSuchTopic, OutOfRange, QueueFull, RequestError, StorageFailed
from toymq_py.failure import Failure
from toymq_py.gateway import answer_room
from toymq_py.gateway.access import check_again, grant_of
from toymq_py.gateway.headers import parse_block
from toymq_py.gateway.message_operations import MESSAGE, PAGE_BYTES_MAX, READ_BYTES, message_json
from toymq_py.gateway.operations import MESSAGE_ID, TOPIC, Answer, Operation, Parameter, check_key, count
from toymq_py.gateway.problems import TooManySearches
from toymq_py.gateway.request_context import Gateway
from toymq_py.gateway.topic_operations import json_response
from toymq_py.letter import failed_with, letter_key
from toymq_py.names import DEAD_LETTERS
from toymq_py.records import MSG_ID_MAX, Records
from toymq_py.topic import Channel, Topic

LOOKED_MAX = 20_000
"""Most messages that one request looks at: some 100 ms of the event loop, in slices."""
LOOKED_BYTES_MAX = 32 * 1024 * 1024
"""Most payload bytes that one request reads, about, beyond a first message of any size."""
CHUNK = 512
"""The ids of a chunk, which is read forwards; fewer where messages are large."""
CHUNKS_MAX = 1000
"""Most chunks of a request: ids without a record cost something, too."""
CHUNK_BYTES_MAX = 4 * 1024 * 1024
"""A chunk with more bytes is read again by halves: the newest messages are to be looked at first."""
SLICE_ROWS = 64
SLICE_BYTES = 64 * 1024
"""Bytes that are read and tested before other tasks get a turn, a message at least; half a millisecond."""
FOUND_MAX = 100
FOUND = 50
TEXT_CHARS_MAX = 200
HEADER_CHARS_MAX = 500

Test = Callable[[Records, int], bool]
"""Whether a row of a run matches the search."""


class Needle(NamedTuple):
    """A header to search for: its name, and its value if that matters."""

    name: str
    value: str | None


def _text(text: str) -> bytes:
    if not 0 < len(text) <= TEXT_CHARS_MAX:
        raise BadArgument(f"text is 1 to {TEXT_CHARS_MAX} characters")
    return text.encode().lower()


def _header(text: str) -> Needle:
    name, colon, value = text.partition(":")
    if not name.strip() or len(text) > HEADER_CHARS_MAX:
        raise BadArgument("header is a name, or name:value, of at most 500 characters: color, or color:red")
    return Needle(name.strip(), value.strip() if colon else None)


TEXT: Parameter[bytes] = Parameter(
    "text", "query", "Part of the payload, the key or a header; ASCII letters in either case.",
    {"type": "string", "minLength": 1, "maxLength": TEXT_CHARS_MAX}, _text,
)  # fmt: skip
KEY: Parameter[bytes] = Parameter("key", "query", "The idempotency key, whole.", {"type": "string"}, check_key)
HEADER: Parameter[Needle] = Parameter(
    "header", "query", "Name of a header, or `name:value`.", {"type": "string", "maxLength": HEADER_CHARS_MAX}, _header
)
ID = count("id", "The message with this id alone.", 0, MSG_ID_MAX)
SINCE = count("since_ms", "Published then or later, unix milliseconds.", 0, 1 << 53)
UNTIL = count("until_ms", "Published before then.", 0, 1 << 53)
BEFORE = count("before", "Look at messages below this id: `next` of the answer before.", 0, MSG_ID_MAX)
MAX = count("max", "How many messages to find at most.", 1, FOUND_MAX, default=FOUND)


def _tests(request: Request) -> list[Test]:
    """Parse the conditions of a search request. Raises: BadArgument."""
    tests: list[Test] = []
    if (key := KEY.of(request)) is not None:
        tests.append(partial(_has_key, key))
    if (header := HEADER.of(request)) is not None:
        tests.append(partial(_has_header, header))
    if (text := TEXT.of(request)) is not None:
        tests.append(partial(_has_text, text))
    return tests


def _has_key(key: bytes, run: Records, row: int) -> bool:
    return run.keys[row] == key


def _has_header(needle: Needle, run: Records, row: int) -> bool:
    block = None if run.headers is None else run.headers[row]
    if not block:
        return False
    value = parse_block(block).get(needle.name)
    return value is not None and needle.value in (None, value)


def _has_text(text: bytes, run: Records, row: int) -> bool:
    block = b"" if run.headers is None else run.headers[row] or b""
    return any(text in part.lower() for part in (run.payloads[row], run.keys[row], block))


class _Search:
    """The progress of one search request."""

    def __init__(self, topic: Topic, low: int, high: int, tests: list[Test], most: int) -> None:
        """Searches the ids ``low`` <= id < ``high``. ``most``: the most results."""
        self._topic = topic
        self._low = low
        self.at = high
        """The lowest id that was searched; all ids from it up to ``high`` were."""
        self._tests = tests
        self._most = most
        self.found: list[str] = []
        """The messages that match, as JSON, newest first."""
        self._found_bytes = 0
        self.looked = 0
        self._chunks = 0
        self._read_bytes = 0
        described = topic.describe(consumers=False)
        mean = described["bytes"] // max(described["messages"], 1)
        self._chunk = max(min(CHUNK, CHUNK_BYTES_MAX // max(mean, 1)), 1)

    @property
    def is_over(self) -> bool:
        """Whether all ids were searched."""
        return self.at <= self._low

    @property
    def is_full(self) -> bool:
        """Whether this request ends here: with enough results, or at its limit of work."""
        return (
            self.is_over or self.looked >= LOOKED_MAX or self._chunks >= CHUNKS_MAX
            or (self.looked > 0 and self._read_bytes >= LOOKED_BYTES_MAX)
            or len(self.found) >= self._most or self._found_bytes >= PAGE_BYTES_MAX
        )  # fmt: skip

    async def look(self, gateway: Gateway, request: Request) -> None:
        """Search the next lower chunk of ids. Raises: OSError; QueueFull when there is no room for the results."""
        self._chunks += 1
        first = max(self.at - self._chunk, self._low)
        room = self._most - len(self.found)
        kept: deque[tuple[Records, int]] = deque(maxlen=room + 1)  # in the order of the log; one more tells where to go on
        read_bytes, looked, at = 0, 0, first
        while at < self.at and not self._topic.deleted:
            run, row, behind = self._topic.read(at, min(self.at - at, SLICE_ROWS), SLICE_BYTES)
            while run is not None and row < len(run) and run.ids[row] < min(behind, self.at):
                looked += 1
                read_bytes += len(run.payloads[row])
                if all(test(run, row) for test in self._tests):
                    kept.append((run, row))
                row += 1
            at = max(behind, at + 1)
            if read_bytes > CHUNK_BYTES_MAX and self._chunk > 1:  # too much at a time: the upper half first
                self._read_bytes += read_bytes
                self._chunk //= 2
                return
            await gateway.waiting.turn()
        texts: list[str] = []
        bottom, texts_bytes, slice_bytes = first, 0, 0
        for run, row in reversed(kept):
            text = json.dumps(message_json(self._topic.name, run, row)) if len(texts) < room else ""
            if not text or (texts and texts_bytes + len(text) > PAGE_BYTES_MAX):
                bottom = run.ids[row] + 1  # the older ones are for the next request
                break
            texts.append(text)
            texts_bytes += len(text)
            if texts_bytes - slice_bytes >= SLICE_BYTES:
                slice_bytes = texts_bytes
                await gateway.waiting.turn()
        answer_room.hold(request, texts_bytes)
        self.found += texts
        self._found_bytes += texts_bytes
        self._read_bytes += read_bytes
        self.looked += looked
        self.at = bottom


async def search(gateway: Gateway, request: Request) -> Response:
    """``GET /v1/topics/{t}/messages:search``."""
    async with gateway.searches.turn(_holder(request)):
        check_again(gateway, request, "subscribe", TOPIC.need(request))  # it may have waited
        answer_room.hold(request, 0)  # its client may be gone
        return await _search(gateway, request)


def _holder(request: Request) -> str:
    """The name under which a search counts: the token's, or the address where there are no tokens."""
    if (grant := grant_of(request)) is not None:
        return f"token {grant.name}"
    return "" if request.client is None else request.client.host


async def _search(gateway: Gateway, request: Request) -> Response:
    topic = gateway.broker.topic(TOPIC.need(request))
    low, high, bottom = topic.first_id, topic.next_id, topic.first_id
    if (since_ms := SINCE.of(request)) is not None:
        low = max(low, topic.resolve(Start("time", since_ms)))
    if (until_ms := UNTIL.of(request)) is not None:
        high = min(high, topic.resolve(Start("time", until_ms)))
    if (msg_id := ID.of(request)) is not None:
        low, high = max(low, msg_id), min(high, msg_id + 1)
    if (before := BEFORE.of(request)) is not None:
        high = min(high, before)
    looking = _Search(topic, low, max(high, low), _tests(request), MAX.or_(FOUND, request))
    while not looking.is_full and not topic.deleted:
        try:
            await looking.look(gateway, request)
        except QueueFull:
            if not looking.found:
                raise
            break  # a shorter page
    following = "null" if looking.is_over else str(looking.at)
    content = (
        f'{{"first_id": {bottom}, "next_id": {topic.next_id}, "looked": {looking.looked}, "looked_down_to": {looking.at}, '
        f'"next": {following}, "messages": [{", ".join(looking.found)}]}}'
    )
    return Response(content, 200, {"cache-control": "no-store"}, "application/json")


async def inspect(gateway: Gateway, request: Request) -> Response:
    """``GET /v1/topics/{t}/messages/{id}``."""
    topic, msg_id = gateway.broker.topic(TOPIC.need(request)), MESSAGE_ID.need(request)
    if not topic.first_id <= msg_id < topic.next_id:
        raise OutOfRange.outside(topic.name, msg_id, topic.first_id, topic.next_id)
    run, row, _ = topic.read(msg_id, 1, READ_BYTES)
    message, ts_ns = None, None
    if run is not None and run.ids[row] == msg_id:
        ts_ns = run.ts_ns[row]
        message = message_json(topic.name, run, row)
        answer_room.hold(request, 2 * len(run.payloads[row]))
    consumers = []
    for number, (name, channel) in enumerate(list(topic.channels.items()), 1):
        if number % SLICE_ROWS == 0:
            await gateway.waiting.turn()
        state, attempts = channel.consumer.state_of(msg_id)
        described: dict[str, Any] = {"consumer": name, "state": state, "attempts": attempts}
        failures = channel.consumer.failures
        if state == "acked":
            described |= {"attempts": None} | _letter(gateway.broker, topic, channel, msg_id, ts_ns)
        elif failures is not None and (failed := failures.find(msg_id)) is not None:
            described["failure"] = _failure(*failed)
        consumers.append(described)
    found: dict[str, Any] = {"topic": topic.name, "id": msg_id, "message": message, "consumers": consumers}
    if topic.is_dead_letters:
        found["settled"] = topic.is_settled(msg_id)
    return json_response(found)


def _letter(broker: Broker, topic: Topic, channel: Channel, msg_id: int, ts_ns: int | None) -> dict[str, Any]:
    """Whether an acked message is a dead letter, which counts as acked (ADR 0258), and its letter. The letter is found by its
    dedupe key, of which the dead-letter topic keeps the newest. ``ts_ns``: None if the message's record cannot be read."""
    name = topic.name + DEAD_LETTERS
    letters = broker.topics.get(name)
    if letters is None:
        return {"state": "acked_or_dead"} if name in broker.unopened else {}
    keys = letters.publisher.dedupe
    key = None if ts_ns is None else letter_key(topic.name, channel.consumer.name, msg_id, ts_ns, channel.consumer.since_ns)
    if key is not None and (letter_id := keys.find(key)) is not None:
        where = {"topic": name, "id": letter_id, "settled": letters.is_settled(letter_id)}
        return {"state": "dead", "letter": where, **_of_letter(letters, letter_id)}
    return {} if key is not None and len(keys) >= letters.next_id else {"state": "acked_or_dead"}


def _of_letter(letters: Topic, letter_id: int) -> dict[str, Any]:
    """The fields of a dead letter about its failed deliveries; {} when its record can no longer be read."""
    try:
        run, row, _ = letters.read(letter_id, 1, 1)
    except RequestError:
        return {}
    if run is None or run.ids[row] != letter_id or run.headers is None:
        return {}
    attempts, failure, at_ms = failed_with(run.headers[row])
    return {"attempts": attempts, "failure": _failure(failure, at_ms)}


def _failure(failure: Failure, at_ms: int | None) -> dict[str, Any]:
    found = {"reason": failure.reason, "error_type": failure.error_type, "error": failure.error}
    return found if at_ms is None else found | {"at_ms": at_ms}


_COUNT = {"type": "integer"}
_TEXT_OR_NULL = {"type": ["string", "null"]}
SEARCHED = {"type": "object", "required": ["first_id", "next_id", "looked", "looked_down_to", "next", "messages"],
            "properties": {
    "first_id": _COUNT, "next_id": _COUNT, "looked": _COUNT, "looked_down_to": _COUNT, "next": {"type": ["integer", "null"]},
    "messages": {"type": "array", "items": MESSAGE}}}  # fmt: skip
INSPECTED = {"type": "object", "required": ["topic", "id", "message", "consumers"], "properties": {
    "topic": {"type": "string"}, "id": _COUNT, "message": {"oneOf": [MESSAGE, {"type": "null"}]},
    "settled": {"type": "boolean", "description": "Of a dead letter: it went back, or was discarded."},
    "consumers": {"type": "array", "items": {"type": "object", "required": ["consumer", "state", "attempts"], "properties": {
        "consumer": {"type": "string"},
        "attempts": {"type": ["integer", "null"], "description": "Null of what is acked: it is not known any more."},
        "state": {"enum": ["acked", "dead", "acked_or_dead", "inflight", "ready", "scheduled", "dying"]},
        "letter": {"type": "object", "description": "Of `dead`: where it is.", "required": ["topic", "id", "settled"],
                   "properties": {"topic": {"type": "string"}, "id": _COUNT, "settled": {"type": "boolean"}}},
        "failure": {"type": "object", "properties": {
            "reason": _TEXT_OR_NULL, "error_type": _TEXT_OR_NULL, "error": _TEXT_OR_NULL, "at_ms": _COUNT}}}}}}}  # fmt: skip
OPERATIONS: tuple[Operation, ...] = (
    Operation("GET", "/v1/topics/{topic}/messages:search", "searchMessages",
              "Find messages in the log, newest first; all conditions together. Nothing is consumed. One request looks at "
              "20,000 messages or 32 MiB at most: `next` goes on below. Of a token one search runs at a time and eight wait.",
              search, "subscribe", (TOPIC, ID, KEY, HEADER, TEXT, SINCE, UNTIL, BEFORE, MAX),
              answers={200: Answer("What was found, and how far down it looked; `next` is null at the end.", SEARCHED)},
              errors=(BadArgument, BadName, NoSuchTopic, OutOfRange, QueueFull, StorageFailed, TooManySearches), safe=True),
    Operation("GET", "/v1/topics/{topic}/messages/{id}", "inspectMessage",
              "One message, and what it is to each consumer: acked, inflight, ready, scheduled, dying (on its way to the dead "
              "letters), dead (in them), or acked_or_dead where too many have come since. `message` is null when its record "
              "cannot be read.",
              inspect, "subscribe", (TOPIC, MESSAGE_ID), answers={200: Answer("The message and its consumers.", INSPECTED)},
              errors=(BadArgument, BadName, NoSuchTopic, OutOfRange, QueueFull, StorageFailed), safe=True),
)  # fmt: skip
