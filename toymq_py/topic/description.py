"""JSON objects of a topic for DESCRIBE, TOPICS and STATS. Contract: protocol.md, "JSON shapes".

Everything is computed on request from the state that delivery and storage use: there are no second counts that could be wrong,
and nothing to restore after a restart.
"""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from toymq_py.consumer import IdSet, MessageCounts
from toymq_py.storage.log import READ_BYTES, Log
from toymq_py.storage.record import ATTRIBUTE_DELIVER_AT, iter_frames
from toymq_py.topic.channel import Channel
from toymq_py.topic.deliverer import ChannelContext

PASSES_MAX = 8
"""Most reads that find nothing but lost records, which count as acked afterwards."""


def unconsumed(log: Log, scheduled: IdSet, waiting: Callable[[], int], context: ChannelContext) -> tuple[int, int]:
    """The counts of a topic without consumers: its backlog, which is the due messages, and its scheduled messages. A stream has
    no backlog (ADR 0175).

    Args:
        waiting: the number of messages; for dead letters, of those that were not redriven.
    """
    later = scheduled.count(log.first_id, log.committed_id - 1)
    return 0 if context.is_stream else waiting() - later, later


def describe_consumers(channels: Mapping[str, Channel], alone: Callable[[], tuple[int, int]]) -> dict[str, Any]:
    """The JSON fields of a topic's consumers, with the largest of their backlogs and of their scheduled counts; without
    consumers, ``alone`` gives these two."""
    found = [describe_channel(channel) for channel in channels.values()]
    backlog, scheduled = [max(each[word] for each in found) for word in ("backlog", "scheduled")] if found else alone()
    return {"backlog": backlog, "scheduled": scheduled, "consumers": found}


def describe_channel(channel: Channel) -> dict[str, Any]:
    """The JSON object of a consumer and its sessions."""
    consumer, log, sessions = channel.consumer, channel.context.log, channel.sessions
    counts = consumer.counts(log.committed_id)
    attempts, attempted_id = consumer.most_attempted()
    oldest_ns, now_ns = oldest_due_ns(channel), channel.context.clock.wall_ns()
    has_acked = consumer.has_acked and consumer.floor > 0  # 1 acked and 0 open: there is no last acked id to show
    return {
        "consumer": consumer.name,
        "mode": channel.mode,
        "has_acked": has_acked,
        "last_acked": consumer.last_acked if has_acked else 0,
        "ready": counts.ready,
        "inflight": counts.inflight,
        "scheduled": counts.scheduled,
        "backlog": counts.backlog,
        "retrying": consumer.retrying,
        "oldest_unacked_age_s": 0.0 if oldest_ns is None else round(max(now_ns - oldest_ns, 0) / 1e9, 3),
        "sessions": len(sessions),
        "attached": is_attached(channel, counts),
        "paused": bool(sessions) and all(session.paused for session in sessions),
        "attempts_max": attempts,
        "attempts_max_id": attempted_id if attempts else None,
        "acked_total": channel.acked_total,
        "redelivered_total": channel.redelivered_total,
    }


def is_attached(channel: Channel, counts: MessageCounts) -> bool:
    """Whether something takes a consumer's messages: a session, a waiting PULL, or a client that works on pulled messages."""
    return channel.takers > 0 or counts.inflight > 0


def oldest_due_ns(channel: Channel, *, given_back: bool = False) -> int | None:
    """Since when the oldest unacked, readable message of a consumer is due, in unix nanoseconds; None when none is due. Only
    the lowest id of each kind (``Consumer.first_due``) is read: a later message is no older, unless its delay was shorter. With
    ``given_back`` messages that were due and wait for the time of their redelivery count, too."""
    consumer, log = channel.consumer, channel.context.log
    for _ in range(PASSES_MAX):
        due = consumer.first_due(log.committed_id, given_back=given_back)
        found = [since_ns for msg_id in due if (since_ns := _due_since_ns(log, msg_id)) is not None]
        if found or not due:
            return min(found, default=None)
    return None


def due_times(log: Log, first: int, last: int) -> dict[int, int]:
    """When delayed messages of an id range are due, by id, in unix nanoseconds. Read from their records.

    Raises: OSError.
    """
    found = {}
    while first <= last:
        frames, _, first = log.read_frames(first, last + 1 - first, READ_BYTES)
        for frame in iter_frames(frames):
            if (due_ns := frame.number(ATTRIBUTE_DELIVER_AT)) is not None:
                found[frame.msg_id] = due_ns
    return found


def _due_since_ns(log: Log, msg_id: int) -> int | None:
    """When a record was stored, or was due if that was later; None for an unreadable one."""
    segment = log.segment_of(msg_id)
    if segment.is_away:  # a figure is no reason to fetch it
        return segment.index_ts_ns[0]
    with contextlib.suppress(OSError):
        run, row, _ = log.read(msg_id, 1, 1)
        if run is None:
            return None
        since_ns = run.ts_ns[row]
        if segment.newest_deliver_at_ns > since_ns:  # else it has no delay
            for frame in iter_frames(log.read_frames(msg_id, 1, 1)[0]):
                since_ns = max(since_ns, frame.number(ATTRIBUTE_DELIVER_AT) or 0)
        return since_ns
    return None


def unopened_topic(name: str, reason: str) -> dict[str, Any]:
    """The JSON object of a topic whose files could not be read."""
    return {
        "topic": name, "first_id": 0, "next_id": 0, "messages": 0, "bytes": 0, "segments": 0, "state": "failed",
        "incarnation": None, "settings": {},
        "backlog": 0, "scheduled": 0,
        "consumers": [], "expired_total": 0, "dead_lettered_total": 0, "dropped_total": 0, "lost": 0,
        "problem": reason,
    }  # fmt: skip
