"""The JSON object of STATS. Contract: protocol.md, "STATS"."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from toymq_py.clock import Clock
from toymq_py.config.options import STATS_LIMITS, BrokerOptions
from toymq_py.metrics import STATS_COUNTERS, Metrics
from toymq_py.storage.commit.space_guard import SpaceGuard
from toymq_py.storage.fs import FileSystem
from toymq_py.version import __version__


def stats(
    options: BrokerOptions, metrics: Metrics, space: SpaceGuard, fs: FileSystem, clock: Clock, gateways: Sequence[str],
    process: Mapping[str, Any],
) -> dict[str, Any]:  # fmt: skip
    """The JSON object of STATS without topics. ``process``: values about the process, among them ``tasks``, the number of
    asyncio tasks, which shows leaks. In the result, ``time_ms`` is the clock that delays and ages are compared with,
    ``limits`` has the values of options, and ``connections_most`` is to be compared with the limit of connections: with
    several workers it is the number of the worker that has the most.
    """
    free = 0
    with suppress(OSError):
        free = fs.free_bytes(options.data_dir)
    return {
        "version": __version__,
        "uptime_s": process["uptime_s"],
        "fsync": options.fsync,
        **{name: getattr(metrics, name) for name in STATS_COUNTERS},
        "connections_most": metrics.connections,
        "fsync_total": metrics.fsync_seconds.count,
        "fsync_p99_s": round(metrics.fsync_p99_s(), 6),
        "torn_total": metrics.connections_torn_total,
        "error_total": metrics.error_total,
        **{name: process[name] for name in ("rss_bytes", "tasks", "loop_lag_s")},
        "disk_free_bytes": free,
        "disk_low": space.is_low(),
        "time_ms": clock.wall_ns() // 1_000_000,
        "gateways": gateways,
        **metrics.cluster_stats(), **metrics.tier_stats(space.behind),
        "limits": {
            "max_payload": options.max_payload_bytes,
            **{name: getattr(options, name) for name in STATS_LIMITS},
        },
    }  # fmt: skip
