"""Answers to DESCRIBE and STATS, for tests without a broker."""

from typing import Any


def consumer(name: str = "c", **changes: Any) -> dict[str, Any]:
    return {
        "consumer": name, "mode": "exclusive", "has_acked": True, "last_acked": 7, "ready": 0, "inflight": 0, "scheduled": 0,
        "backlog": 0, "oldest_unacked_age_s": 0.0, "sessions": 1, "paused": False, **changes,
    }  # fmt: skip


def topic(name: str, *consumers: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "topic": name, "first_id": 0, "next_id": 100, "messages": 100, "bytes": 4096, "segments": 1, "state": "ok",
        "consumers": list(consumers), **changes,
    }  # fmt: skip


def stats(
    *topics: dict[str, Any], uptime_s: float = 60.0, started_s: float = 1_781_767_740.0, **changes: Any
) -> dict[str, Any]:
    return {
        "version": "1.0", "uptime_s": uptime_s, "time_ms": round((started_s + uptime_s) * 1000),
        "fsync": "always", "connections": 3, "publish_total": 0, "deliver_total": 0,
        "ack_total": 0, "error_total": 0, "fsync_p99_s": 0.0021, "loop_lag_s": 0.0034, "rss_bytes": 50 << 20,
        "disk_free_bytes": 9 << 30, "disk_low": False, "topics": list(topics), **changes,
    }  # fmt: skip
