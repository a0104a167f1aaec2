"""The metrics of the broker: plain numbers without a third-party package; each costs an addition on the hot path.

``TABLE`` lists every metric with its kind, unit, labels and help; exporters and docs/metrics.md are made from it. ``Metrics``
holds the counters; gauges are computed when they are read.
Contract: clients.md, "Operations".
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from toymq_py.errors import Moved


class Kind(Enum):
    """The metric types of Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table. Exporters put ``toymq_`` before the name. ``bounds``: a histogram's buckets, in its unit."""

    name: str
    kind: Kind
    unit: str
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    of_cluster: bool = False
    """Whether only a node of a cluster has it."""


SECONDS_BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The bounds for durations: from a sync into an SSD's cache to a disk that hangs."""
MESSAGES_BOUNDS = tuple(float(4**power) for power in range(9))
"""The bounds for numbers of messages, 1 to 65,536: from a lone publisher to a pipeline at full speed."""

LIMITS = (
    "connections", "address_connections", "token_connections", "reserve_connections", "topics", "token_topics",
    "reserve_topics", "held_bytes", "holder_held_bytes", "memory", "consumers", "token_consumers", "reserve_consumers",
    "unacked", "handshakes",
)  # fmt: skip
"""The limits of ``auth.quotas``: of the broker, an address, a token, the reserve for admins, a consumer, and TLS handshakes."""
TOPIC = ("topic",)
CONSUMER = ("topic", "consumer")

TABLE: tuple[Metric, ...] = (
    Metric("publish_total", Kind.COUNTER, "messages", "Publishes that were stored and answered OK."),
    Metric("duplicate_total", Kind.COUNTER, "messages", "Publishes that were answered DUP: nothing was stored again."),
    Metric("deliver_total", Kind.COUNTER, "messages", "Deliveries that were handed to a session, redeliveries among them."),
    Metric("redeliver_total", Kind.COUNTER, "messages", "Deliveries with an attempt above 1, so not all that came again."),
    Metric("ack_total", Kind.COUNTER, "messages", "Messages acked, each once per consumer."),
    Metric("nack_total", Kind.COUNTER, "messages", "Messages given back by NACK."),
    Metric("lease_expired_total", Kind.COUNTER, "messages", "Messages whose lease ended by its time, and nothing had settled."),
    Metric("lease_left_total", Kind.COUNTER, "messages", "Messages that a session had when it or its subscription ended."),
    Metric("errors_total", Kind.COUNTER, "replies", "ERR replies by the code they carried.", ("code",)),
    Metric("connections", Kind.GAUGE, "connections", "Open connections."),
    Metric("connections_opened_total", Kind.COUNTER, "connections", "Connections that became a session."),
    Metric("connections_evicted_total", Kind.COUNTER, "connections",
           "Connections, anonymous or idle over HTTP, that were closed to make place for others."),
    Metric("connections_evictable", Kind.GAUGE, "connections", "Connections that would be closed to make place for others."),
    Metric("limits_reached_total", Kind.COUNTER, "refusals",
           "Refusals, and waits of AMQP publishers, by the limit: of all, an address, token, consumer, memory, the reserve.",
           ("limit",)),
    Metric("held_bytes", Kind.GAUGE, "bytes",
           "Bodies and replies that wait, of connections with more than 64 KiB (--max-held-bytes)."),
    Metric("memory_high", Kind.GAUGE, "0 or 1", "Whether publishes are refused for lack of memory (--memory-max)."),
    Metric("connections_torn_total", Kind.COUNTER, "connections", "Connections that ended inside a frame."),
    Metric("commit_messages", Kind.HISTOGRAM, "messages", "Messages that one commit stored together.", (), MESSAGES_BOUNDS),
    Metric("fsync_seconds", Kind.HISTOGRAM, "seconds", "How long the disk took to sync a log.", (), SECONDS_BOUNDS),
    Metric("loop_held_seconds", Kind.HISTOGRAM, "seconds",
           "How long a commit on the event loop held it (--commit).", (), SECONDS_BOUNDS),
    Metric("publish_seconds", Kind.HISTOGRAM, "seconds",
           "From when a message was appended to when it was stored, OK being due.", (), SECONDS_BOUNDS),
    Metric("disk_free_bytes", Kind.GAUGE, "bytes", "Free space where the data directory is."),
    Metric("disk_low", Kind.GAUGE, "0 or 1", "Whether publishing is refused for lack of space (--min-free-bytes)."),
    Metric("resident_bytes", Kind.GAUGE, "bytes", "Resident memory of the process."),
    Metric("loop_lag_seconds", Kind.GAUGE, "seconds", "How late the event loop was at worst in the last ten seconds."),
    Metric("uptime_seconds", Kind.GAUGE, "seconds", "Time since the broker was made."),
    Metric("build_info", Kind.GAUGE, "always 1", "The broker's version, and its --fsync.", ("version", "fsync")),
    Metric("topics", Kind.GAUGE, "topics", "Topics by state: degraded has damage, failed refuses publishes.",
           ("state",)),
    Metric("topic_appended_total", Kind.COUNTER, "messages", "Messages ever stored in a topic: its next id.", TOPIC),
    Metric("topic_messages", Kind.GAUGE, "messages", "Messages that are retained.", TOPIC),
    Metric("topic_lost_messages", Kind.GAUGE, "messages", "Ids in the retained range that no record stands for.", TOPIC),
    Metric("topic_bytes", Kind.GAUGE, "bytes", "Bytes of all segments, preallocated space apart.", TOPIC),
    Metric("topic_segments", Kind.GAUGE, "segments", "Segments, the active one among them.", TOPIC),
    Metric("topic_expired_total", Kind.COUNTER, "messages", "Messages that outlived their ttl.", TOPIC),
    Metric("topic_dead_lettered_total", Kind.COUNTER, "messages", "Messages moved to the dead-letter topic.", TOPIC),
    Metric("topic_dropped_total", Kind.COUNTER, "messages", "Messages that retention dropped unacked.", TOPIC),
    Metric("consumer_ready_messages", Kind.GAUGE, "messages", "Waiting to be delivered to a consumer.", CONSUMER),
    Metric("consumer_inflight_messages", Kind.GAUGE, "messages", "Delivered to a consumer, neither acked nor back.", CONSUMER),
    Metric("consumer_scheduled_messages", Kind.GAUGE, "messages",
           "Not due for a consumer: delayed, or given back for a time. No backlog.", CONSUMER),
    Metric("consumer_backlog_messages", Kind.GAUGE, "messages",
           "Due and not acked by a consumer: ready and inflight.", CONSUMER),
    Metric("consumer_retrying_messages", Kind.GAUGE, "messages",
           "Not acked after a delivery that failed: by a NACK, or a lease that ended.", CONSUMER),
    Metric("consumer_oldest_unacked_seconds", Kind.GAUGE, "seconds",
           "How long the oldest message that a consumer has not acked has been due; 0 without a backlog.", CONSUMER),
    Metric("consumer_sessions", Kind.GAUGE, "sessions", "Sessions that are subscribed as a consumer.", CONSUMER),
    Metric("consumer_attached", Kind.GAUGE, "0 or 1",
           "Whether a session, a PULL that waits or a lease takes a consumer's messages.", CONSUMER),
    Metric("alerts_firing", Kind.GAUGE, "topics", "Topics that fire an alert rule; 1 for a low disk.", ("alert",)),
    Metric("alert_notices_total", Kind.COUNTER, "notices",
           "Notices of alerts by outcome: sent, or failed when the last attempt was not taken.", ("outcome",)),
    Metric("tier_failing", Kind.GAUGE, "0 or 1", "Whether the bucket of --tier is away, refuses, or has other segments."),
    Metric("tier_uploaded_bytes_total", Kind.COUNTER, "bytes", "Bytes of sealed segments that the bucket of --tier has taken."),
    Metric("tier_fetch_failing", Kind.GAUGE, "0 or 1", "Whether readers wait for the bucket of --tier, since a fetch failed."),
    Metric("tier_fetched_bytes_total", Kind.COUNTER, "bytes", "Bytes that were fetched from the bucket to be read."),
    Metric("role", Kind.GAUGE, "0 or 1",
           "What this node of a cluster does: LOOKING, JOINING, FOLLOWING, OPENING, LEADING. With --group, in which one.",
           ("role", "group"), of_cluster=True),
    Metric("epoch", Kind.GAUGE, "epoch", "The epoch of the leader that this node knows; 0: none.", of_cluster=True),
    Metric("replicas", Kind.GAUGE, "copies", "Copies that the group is to have.", of_cluster=True),
    Metric("min_in_sync", Kind.GAUGE, "copies", "With fewer copies in sync publishes are refused (NOT_ENOUGH_REPLICAS).",
           of_cluster=True),
    Metric("isr_size", Kind.GAUGE, "copies", "Copies that are in sync, as this node knows it: any of them may be elected.",
           of_cluster=True),
    Metric("replica_lag_bytes", Kind.GAUGE, "bytes", "What a follower has not acknowledged, as its leader knows it.",
           ("replica",), of_cluster=True),
    Metric("replica_lag_seconds", Kind.GAUGE, "seconds", "Since when a follower has not acknowledged it.", ("replica",),
           of_cluster=True),
    Metric("lease_remaining_seconds", Kind.GAUGE, "seconds", "How long this node's lease surely lives.", of_cluster=True),
    Metric("replica_sync_seconds", Kind.HISTOGRAM, "seconds",
           "From when a leader shipped a sync to when a follower acknowledged it.", ("replica",), SECONDS_BOUNDS,
           of_cluster=True),
    Metric("failovers_total", Kind.COUNTER, "elections",
           "Terms that this process has led, by why it was elected: began, handed_over, leader_lost, restarted, forced.",
           ("reason",), of_cluster=True),
    Metric("isr_changes_total", Kind.COUNTER, "changes",
           "In-sync sets that this leader has written: a copy was added, or dropped.", ("change",), of_cluster=True),
    Metric("resync_bytes_total", Kind.COUNTER, "bytes", "Bytes of bulk copies that this leader has sent.", of_cluster=True),
    Metric("damaged_segments", Kind.GAUGE, "segments", "Segments of this copy that the scrub found damaged.", of_cluster=True),
    Metric("scrub_bytes_total", Kind.COUNTER, "bytes", "Bytes of sealed segments that the scrub has read.", of_cluster=True),
    Metric("clock_offset_seconds", Kind.GAUGE, "seconds",
           "How far a follower's wall clock is ahead of its leader's, about.", of_cluster=True),
    Metric("etcd_request_seconds", Kind.HISTOGRAM, "seconds", "How long calls of etcd took that were answered.", (),
           SECONDS_BOUNDS, of_cluster=True),
    Metric("etcd_failures_total", Kind.COUNTER, "calls", "Calls of etcd without an answer that can be trusted.",
           of_cluster=True),
    Metric("etcd_silent_seconds", Kind.GAUGE, "seconds", "For how long etcd has answered no call of this node; 0: it answers.",
           of_cluster=True),
    Metric("group_topics", Kind.GAUGE, "topics",
           "Topics by group, each partition one, without dead letters, as this leader knows them (--group).", ("group",),
           of_cluster=True),
    Metric("group_has_leader", Kind.GAUGE, "0 or 1",
           "Whether a group that was served has a leader, as this leader of any group knows it (--group).", ("group",),
           of_cluster=True),
    Metric("group_load", Kind.GAUGE, "messages", "Stored and delivered a second by a group, as its leader said last.",
           ("group",), of_cluster=True),
    Metric("placements_total", Kind.COUNTER, "topics", "Topics that this leader has placed in a group.", of_cluster=True),
)  # fmt: skip

BY_NAME = {metric.name: metric for metric in TABLE}

STATS_COUNTERS = (
    "connections", "publish_total", "duplicate_total", "deliver_total", "redeliver_total", "ack_total", "nack_total",
)  # fmt: skip
"""Counters that STATS shows under their names."""
FSYNC_SAMPLES = 1024


class Exemplar(NamedTuple):
    """A traced message as the example of a histogram's bucket. ``value`` is in the metric's unit, ``at_s`` in Unix seconds."""

    value: float
    trace_id: str
    span_id: str
    at_s: float


class Histogram:
    """The counts of each bucket; the last one counts values above all bounds. ``sum`` is in the metric's unit. ``exemplars``:
    the newest exemplar of a bucket, by its index in ``counts``; empty without traces."""

    __slots__ = ("_bounds", "counts", "exemplars", "sum")

    def __init__(self, metric: Metric) -> None:
        self.exemplars: dict[int, Exemplar] = {}
        self._bounds = metric.bounds
        self.counts = [0] * (len(metric.bounds) + 1)
        self.sum = 0.0

    @property
    def count(self) -> int:
        """The number of observations."""
        return sum(self.counts)

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self._bounds, value)] += times
        self.sum += value * times

    def exemplify(self, exemplar: Exemplar) -> None:
        """Set the exemplar of its value's bucket. The value itself must be observed separately."""
        self.exemplars[bisect_left(self._bounds, exemplar.value)] = exemplar


class ClusterRows(NamedTuple):
    """The metrics of a cluster: for each metric a number or a histogram by its label values."""

    numbers: Mapping[str, Mapping[tuple[str, ...], float]]
    histograms: Mapping[str, Mapping[tuple[str, ...], Histogram]]


class Metrics:
    """Counters named in ``TABLE``, and ``errors`` by code. Belongs to the event loop."""

    __slots__ = ("_fsync_s", "ack_total", "alert_notices", "alerts_firing", "channels_examining", "cluster",
                 "commit_messages", "connections", "connections_evicted_total", "connections_opened_total",
                 "connections_torn_total", "deliver_total", "duplicate_total", "errors", "fsync_seconds",
                 "lease_expired_total", "lease_left_total", "limits_reached", "loop_held_seconds", "nack_total",
                 "publish_seconds", "publish_total", "redeliver_total", "tier_failing", "tier_fetch_failing",
                 "tier_fetched_bytes_total", "tier_problem", "tier_uploaded_bytes_total", "tier_url")  # fmt: skip

    def __init__(self) -> None:
        self.channels_examining = 0
        """Consumers that wait until a thread has found the end of a damage. Not exported."""
        self.publish_total = 0
        self.duplicate_total = 0
        self.deliver_total = 0
        self.redeliver_total = 0
        self.ack_total = 0
        self.nack_total = 0
        self.lease_expired_total = 0
        self.lease_left_total = 0
        self.connections = 0
        self.connections_opened_total = 0
        self.connections_torn_total = 0
        self.connections_evicted_total = 0
        self.limits_reached = dict.fromkeys(LIMITS, 0)
        self.errors: dict[str, int] = {}
        self.alerts_firing: dict[str, int] = {}
        """Firing alerts by rule."""
        self.alert_notices = {"sent": 0, "failed": 0}
        self.tier_fetch_failing = 0
        self.tier_fetched_bytes_total = 0
        self.tier_failing = 0
        """1 while the tier fails, else 0; the thread of the tier sets this and the next two."""
        self.tier_problem: str | None = None
        """Why the tier fails."""
        self.tier_uploaded_bytes_total = 0
        self.tier_url: str | None = None
        self.commit_messages = Histogram(BY_NAME["commit_messages"])
        self.fsync_seconds = Histogram(BY_NAME["fsync_seconds"])
        self.loop_held_seconds = Histogram(BY_NAME["loop_held_seconds"])
        self.publish_seconds = Histogram(BY_NAME["publish_seconds"])
        self._fsync_s: deque[float] = deque(maxlen=FSYNC_SAMPLES)
        self.cluster: Callable[[], ClusterRows] | None = None
        """The rows of the metrics of a cluster; None for a broker that is in none."""

    def refused(self, code: str, count: int = 1) -> None:
        """Count ``ERR`` replies by code; ``errors.py`` bounds the number of codes. Redirects do not count."""
        if code == Moved.code:
            return
        self.errors[code] = self.errors.get(code, 0) + count

    def limit_reached(self, limit: str) -> None:
        """Count a refusal by one of ``LIMITS``."""
        self.limits_reached[limit] += 1

    @property
    def error_total(self) -> int:
        """The number of ``ERR`` replies of all codes."""
        return sum(self.errors.values())

    def cluster_stats(self) -> dict[str, Any]:
        """The field ``cluster`` of STATS; empty for a broker that is in no cluster."""
        if self.cluster is None:
            return {}
        rows = self.cluster().numbers

        def one(name: str) -> float:
            return next(iter(rows.get(name, {}).values()), 0)

        lag_s = rows.get("replica_lag_seconds", {})
        followers = [
            {"name": labels[0], "lag_bytes": lag_bytes, "lag_s": round(lag_s.get(labels, 0.0), 3)}
            for labels, lag_bytes in sorted(rows.get("replica_lag_bytes", {}).items())
        ]
        numbers = {
            "epoch": one("epoch"), "in_sync": one("isr_size"), "replicas": one("replicas"), "min_in_sync": one("min_in_sync"),
            "damaged_segments": one("damaged_segments"), "etcd_silent_s": round(one("etcd_silent_seconds"), 3),
        }  # fmt: skip
        loads = rows.get("group_load", {})
        groups = [
            {"name": labels[0], "topics": int(topics), "messages_s": round(loads.get(labels, 0.0))}
            for labels, topics in sorted(rows.get("group_topics", {}).items())
        ]
        return {"cluster": {**numbers, "followers": followers, **({"groups": groups} if groups else {})}}

    def tier_stats(self, behind: str | None) -> dict[str, Any]:
        """The fields of STATS about the bucket; {} without ``--tier``. ``behind``: why publishes are refused because of the
        bucket."""
        if self.tier_url is None:
            return {}
        refused = None if behind is None else f"publishing is refused: {behind}"
        return {"tier": self.tier_url, "tier_problem": "; ".join(filter(None, (self.tier_problem, refused))) or None}

    def synced(self, seconds: float) -> None:
        """Record the time of one sync of a log."""
        self.fsync_seconds.observe(seconds)
        self._fsync_s.append(seconds)

    def fsync_p99_s(self) -> float:
        """99th percentile over the newest syncs, in seconds; 0 before the first."""
        samples = sorted(self._fsync_s)
        return samples[(len(samples) - 1) * 99 // 100] if samples else 0.0
