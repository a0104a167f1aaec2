"""The dead-letter format: headers and key of a dead letter, and of the record that REDRIVE makes from one. Pure.

Contract: delivery.md, "Attempts"; ADR 0023, 0041, 0062. Clients may publish such keys and headers, too: a key
is a hint, not a proof.
"""

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from toymq_py.failure import Failure
from toymq_py.names import DEAD_LETTERS, is_dead_letters
from toymq_py.records import PRODUCER_PREFIX, Records

ORIGIN_TOPIC, ORIGIN_ID, ORIGIN_KEY = b"toymq-origin-topic", b"toymq-origin-id", b"toymq-origin-key"
CONSUMER, ATTEMPTS, REASON = b"toymq-consumer", b"toymq-attempts", b"toymq-reason"
ERROR_TYPE, ERROR, FAILED_AT = b"toymq-error-type", b"toymq-error", b"toymq-failed-at"
TRACEBACK = b"toymq-traceback"
"""The header with the traceback: a JSON string, because it has line breaks."""
FIRST_DELIVERED, LAST_DELIVERED = b"toymq-first-delivered", b"toymq-last-delivered"
"""The headers with the times of the first and the last delivery, in unix milliseconds."""
REDRIVES, REDRIVE_CONSUMER = b"toymq-redrives", b"toymq-redrive-consumer"
RESERVED = frozenset((
    ORIGIN_TOPIC, ORIGIN_ID, ORIGIN_KEY, CONSUMER, ATTEMPTS, REASON, ERROR_TYPE, ERROR, TRACEBACK, FAILED_AT, FIRST_DELIVERED,
    LAST_DELIVERED, REDRIVES, REDRIVE_CONSUMER,
))  # fmt: skip
"""Header names that only the broker sets."""
LETTER_KEY = b"dlq:"
"""Prefix of the key of a dead letter."""
REDRIVE_KEY = b"redrive:"
"""Prefix of the key of a record that came back from a dead-letter topic."""
DIGITS_MAX = 18
"""Most digits of a number: a client that publishes under one of these keys may have written the header; ``int`` raises from
4301 digits on."""

Witness = tuple[int, list[bytes]]
"""A moved record: its id, and the fields of its key after the name of its origin."""


def split_headers(block: bytes) -> tuple[bytes, dict[bytes, bytes]]:
    """Split a header block into the client's part, ended by a line break, and the reserved headers."""
    if not block:
        return b"", {}
    ended = block if block.endswith(b"\n") else block + b"\n"
    if b"toymq-" not in block:
        return ended, {}
    kept: list[bytes] = []
    reserved: dict[bytes, bytes] = {}
    for line in ended[:-1].split(b"\n"):
        name, _, value = line.partition(b":")
        if name in RESERVED:
            reserved[name] = value.removeprefix(b" ")
        else:
            kept.append(line + b"\n")
    return b"".join(kept), reserved


def header_block(lines: Iterable[tuple[bytes, bytes]]) -> bytes:
    return b"".join(b"%b: %b\n" % line for line in lines)


# -- the letter of a message


def letter_key(topic: str, consumer: str, msg_id: int, ts_ns: int, since_ns: int) -> bytes:
    """The dedupe key of a message's dead letter, so that it becomes one only once. ``since_ns``: when its consumer was created,
    which distinguishes it from an older consumer of the same name."""
    return b"%b%b:%b:%d:%d:%d" % (LETTER_KEY, topic.encode(), consumer.encode(), msg_id, ts_ns, since_ns)


def message_headers(topic: str, key: bytes, block: bytes, msg_id: int) -> bytes:
    """The first part of a letter's headers: the message's own headers, its id, and its key."""
    kept, reserved = split_headers(block)
    if not came_back(topic, key) or REDRIVES not in reserved:
        own = key and not key.startswith(PRODUCER_PREFIX)
        reserved = {ORIGIN_KEY: key} if own else {}  # drop what a publisher wrote under these names
    redrives = b"" if REDRIVES not in reserved else b"%b: %b\n" % (REDRIVES, reserved[REDRIVES])
    origin_key = b"" if ORIGIN_KEY not in reserved else b"%b: %b\n" % (ORIGIN_KEY, reserved[ORIGIN_KEY])
    return b"%b%b%b%b: %d\n" % (kept, redrives, origin_key, ORIGIN_ID, msg_id)


def failure_headers(held_reason: str, failed: tuple[Failure, int] | None) -> bytes:
    """The headers with the reason of a dead letter.

    Args:
        held_reason: the reason if no NACK gave one.
        failed: the last failure that a NACK reported, and when, in Unix milliseconds.
    """
    if failed is None:
        return header_block([(REASON, held_reason.encode())])
    failure, at_ms = failed
    traceback = None if failure.traceback is None else json.dumps(failure.traceback, ensure_ascii=False)
    lines = (
        (REASON, failure.reason or held_reason), (ERROR_TYPE, failure.error_type), (ERROR, failure.error),
        (TRACEBACK, traceback), (FAILED_AT, str(at_ms)),
    )  # fmt: skip
    return header_block([(name, text.encode()) for name, text in lines if text is not None])


def failed_with(block: bytes) -> tuple[int | None, Failure, int | None]:
    """Read from the headers of a letter how often its message was delivered, the failure, and when a NACK reported it, in Unix
    milliseconds; None for missing values."""
    _, reserved = split_headers(block)
    found = (reserved.get(name) for name in (REASON, ERROR_TYPE, ERROR))
    texts = (None if text is None else text.decode(errors="replace") for text in found)
    return _number(reserved.get(ATTEMPTS, b"")), Failure(*texts), _number(reserved.get(FAILED_AT, b""))


def _number(text: bytes) -> int | None:
    return int(text) if text.isdigit() and len(text) <= DIGITS_MAX else None


# -- the way back


class Return(NamedTuple):
    """The record that REDRIVE publishes for a dead letter. It depends only on the letter, so every retry makes the same
    record."""

    key: bytes
    payload: bytes
    headers: bytes
    consumer: bytes
    """The consumer that failed the message; b"" if the letter has none."""


def return_of(letters_topic: str, run: Records, row: int) -> Return:
    """Make the record that REDRIVE publishes for a dead letter."""
    kept, reserved = split_headers(b"" if run.headers is None else run.headers[row])
    headers = kept
    if ORIGIN_KEY in reserved:
        headers += b"%b: %b\n" % (ORIGIN_KEY, reserved[ORIGIN_KEY])
    headers += b"%b: %d\n" % (REDRIVES, (_number(reserved.get(REDRIVES, b"")) or 0) + 1)
    if CONSUMER in reserved:
        headers += b"%b: %b\n" % (REDRIVE_CONSUMER, reserved[CONSUMER])
    key = b"%b%b:%d:%d" % (REDRIVE_KEY, letters_topic.encode(), run.ids[row], run.ts_ns[row])
    return Return(key, run.payloads[row], headers, reserved.get(CONSUMER, b""))


def rows_for(topic: str, records: Records, start: int, stop: int, consumer: bytes) -> tuple[int, int]:
    """Find the first rows that a consumer of the topic gets: a redriven record is only for the consumer that gave it up. If a
    worker forwarded it to another topic, with key and headers, it is for all consumers there.

    Returns: the first such row, and the row after the consecutive ones that follow it; (stop, stop) for none.
    """
    assert records.headers is not None
    prefix = _redrive_key(topic)
    first = -1
    for row in range(start, stop):
        if not records.keys[row].startswith(prefix) or _is_for(records.headers[row], consumer):
            if first < 0:
                first = row
        elif first >= 0:
            return first, row
    return (first, stop) if first >= 0 else (stop, stop)


def came_back(topic: str, key: bytes) -> bool:
    """Whether a record's key is that of a record redriven from the topic's own dead letters."""
    return key.startswith(_redrive_key(topic))


def _redrive_key(topic: str) -> bytes:
    """The prefix of the keys of records that were redriven from the topic's own dead letters."""
    return b"%b%b%b:" % (REDRIVE_KEY, topic.encode(), DEAD_LETTERS.encode())


def _is_for(block: bytes, consumer: bytes) -> bool:
    _, reserved = split_headers(block)
    return reserved.get(REDRIVE_CONSUMER, consumer) == consumer


# -- what a restart finds


def moved_records(keys: Iterable[tuple[int, Sequence[bytes]]], topic: str) -> list[Witness]:
    """Find, by their keys, the records that were moved to ``topic``: dead letters, or redriven records.

    Args:
        keys: runs of records as recovery found them: the id of the first, and the keys of all.
    """
    if is_dead_letters(topic):
        prefix = b"%b%b:" % (LETTER_KEY, topic.removesuffix(DEAD_LETTERS).encode())
    else:
        prefix = _redrive_key(topic)
    return [
        (first_id + row, key.removeprefix(prefix).split(b":"))
        for first_id, run in keys
        for row, key in enumerate(run)
        if key.startswith(prefix)
    ]
