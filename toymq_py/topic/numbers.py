"""What DESCRIBE, TOPICS and STATS say of a topic. Contract: protocol.md, "JSON shapes".

Everything is computed when it is asked for, from what delivery and storage go by themselves: there is no second book that could
be wrong, and nothing to restore after a restart.
"""

import contextlib
from typing import TYPE_CHECKING, Any

from toymq_py.consumer import Consumer
from toymq_py.storage.log import Log

if TYPE_CHECKING:
    from toymq_py.topic.topic import Topic


def describe(topic: "Topic", *, consumers: bool = True) -> dict[str, Any]:
    """The JSON object of a topic; thousands of ``consumers`` take a while."""
    log = topic.log
    return {
        "topic": topic.name,
        "first_id": log.first_id,
        "next_id": log.committed_id,
        "messages": log.messages(),
        "bytes": log.size_bytes,
        "segments": len(log.segments),
        "state": topic.state,
        "settings": topic.settings.to_json(),
        "consumers": [topic.describe_consumer(each) for each in topic.consumers.values()] if consumers else [],
        "expired_total": topic.expired_total,
        "dead_lettered_total": topic.dead_lettered_total,
        "dropped_total": topic.dropped_total,
        "lost": log.lost_count(),
        **({"offsets_problem": topic.offsets_problem} if topic.lacks_consumers else {}),
    } | (topic.redriven.describe() if topic.is_dead_letters else {})


def describe_consumer(log: Log, consumer: Consumer, mode: str, now_ns: int) -> dict[str, Any]:
    """One of ``consumers`` in it, without its sessions."""
    counts = consumer.counts(log.committed_id)
    has_acked = consumer.has_acked and consumer.floor > 0  # 1 acked and 0 open: there is no last acked id to show
    return {
        "consumer": consumer.name,
        "mode": mode,
        "has_acked": has_acked,
        "last_acked": consumer.last_acked if has_acked else 0,
        "ready": counts.ready,
        "inflight": counts.inflight,
        "scheduled": counts.scheduled,
        "backlog": counts.backlog,
        "oldest_unacked_age_s": round(_oldest_unacked_age_s(log, consumer, now_ns), 3),
    }


def _oldest_unacked_age_s(log: Log, consumer: Consumer, now_ns: int) -> float:
    """Of the first record that the consumer has not acked and that can be read; 0 when there is none."""
    position = consumer.floor
    with contextlib.suppress(OSError):
        while (span := consumer.next_unacked(position, log.committed_id)) is not None:
            run, row, position = log.read(span[0], 1, 1)
            if run is not None:
                return max((now_ns - run.ts_ns[row]) / 1e9, 0.0)
    return 0.0


def unopened_topic(name: str, reason: str) -> dict[str, Any]:
    """The JSON object of a topic whose files could not be read."""
    return {
        "topic": name, "first_id": 0, "next_id": 0, "messages": 0, "bytes": 0, "segments": 0, "state": "failed",
        "settings": {}, "consumers": [], "expired_total": 0, "dead_lettered_total": 0, "dropped_total": 0, "lost": 0,
        "problem": reason,
    }  # fmt: skip
