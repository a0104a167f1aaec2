"""The record that a dead letter comes back as, and whether what stands under its key is that record.

Contract: delivery.md, "Attempts" (REDRIVE); ADR 0041. Clients may publish any key, one that looks like ours among them: a key
says where to look, and no more. Belongs to the event loop.
"""

from typing import TYPE_CHECKING, NamedTuple

from toymq_py.model import Records
from toymq_py.topic.moving import (
    CONSUMER,
    ORIGIN_KEY,
    REDRIVE_CONSUMER,
    REDRIVE_KEY,
    REDRIVES,
    Reading,
    split_headers,
)

if TYPE_CHECKING:
    from toymq_py.topic.topic import Topic

REDRIVES_DIGITS_MAX = 18
"""A client that publishes under one of our keys may have written this header; ``int`` raises from 4301 digits on."""


class Return(NamedTuple):
    """All of a letter's new record but its id and its time: made of the letter alone, and so the same at every try."""

    key: bytes
    payload: bytes
    headers: bytes
    consumer: bytes
    """Who failed the message; b"" where the letter does not say."""


def return_of(dlq: str, run: Records, row: int) -> Return:
    """What a letter of a dead-letter topic comes back as."""
    kept, ours = split_headers(b"" if run.headers is None else run.headers[row])
    redrives = ours.get(REDRIVES, b"")
    headers = kept
    if ORIGIN_KEY in ours:
        headers += b"%b: %b\n" % (ORIGIN_KEY, ours[ORIGIN_KEY])
    counted = redrives.isdigit() and len(redrives) <= REDRIVES_DIGITS_MAX
    headers += b"%b: %d\n" % (REDRIVES, int(redrives) + 1 if counted else 1)
    if CONSUMER in ours:
        headers += b"%b: %b\n" % (REDRIVE_CONSUMER, ours[CONSUMER])
    key = b"%b%b:%d:%d" % (REDRIVE_KEY, dlq.encode(), run.ids[row], run.ts_ns[row])
    return Return(key, run.payloads[row], headers, ours.get(CONSUMER, b""))


def is_there(origin: "Topic", reading: Reading, msg_id: int, back: Return) -> bool:
    """Whether this record is the letter, come back and stored: the same to a consumer, whoever published it, neither delayed
    nor about to expire.

    Raises: OSError.
    """
    if msg_id >= origin.log.committed_id or msg_id in origin.delays.schedule.ids:
        return False
    run, row = reading.find(msg_id)
    if run is None or (run.expires_at_ns is not None and run.expires_at_ns[row]):
        return False
    headers = b"" if run.headers is None else run.headers[row]
    return (run.keys[row], run.payloads[row], headers) == (back.key, back.payload, back.headers)
