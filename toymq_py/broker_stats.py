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
    """The figures of STATS without topics. ``process``: figures of the process; ``tasks`` counts the event loop's, so that a
    leaked one shows. ``time_ms`` is the clock that delays and ages are compared with; ``limits`` are the options of these
    names, and ``connections_most`` is the number to compare with them: with several workers that of the worker with the most.
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
