"""Options of the broker and settings of a topic: frozen, checked once, units last in the name.

Contract: clients.md, "Command lines"; delivery.md, "Per-topic settings". Where a value comes from (command line, environment,
file) is the command line's business; here are names, units, defaults and limits.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from toymq_py.errors import BadArgument, ConfigError
from toymq_py.model import DEFAULT_MAX_PAYLOAD, DURATION_MS_MAX, PAYLOAD_BYTES_LIMIT

FsyncMode = Literal["always", "interval", "never"]


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """What ``toymq serve`` takes; defaults as in clients.md. Raises ConfigError for what makes no sense."""

    data_dir: str = "./data"
    fsync: FsyncMode = "always"
    fsync_interval_ms: int = 5
    segment_bytes: int = 64 * 1024 * 1024
    min_free_bytes: int = 256 * 1024 * 1024
    max_payload_bytes: int = DEFAULT_MAX_PAYLOAD
    max_connections: int = 10_000
    max_topics: int = 10_000
    max_consumers: int = 1_000
    """Per topic."""
    max_subscriptions: int = 1_000
    """Per session."""
    max_inflight_bytes: int = 64 * 1024 * 1024
    """Per connection: publishes that wait for the disk, with their replies."""
    visibility_ms: int = 30_000
    nack_backoff_min_ms: int = 100
    nack_backoff_max_ms: int = 30_000
    dedupe_keys: int = 65_536
    """Per topic."""
    dedupe_keys_total: int = 1_000_000
    retain_acked_for_ms: int = 24 * 3_600_000
    shutdown_timeout_ms: int = 5_000
    strict_recovery: bool = False

    def __post_init__(self) -> None:
        for name, low, high in (
            ("fsync_interval_ms", 1, 60_000),
            ("segment_bytes", 4096, 1 << 30),
            ("min_free_bytes", 0, 1 << 62),
            ("max_payload_bytes", 1, PAYLOAD_BYTES_LIMIT),
            ("max_connections", 1, 1 << 20),
            ("max_topics", 1, 1 << 20),
            ("max_consumers", 1, 1 << 20),
            ("max_subscriptions", 1, 1 << 20),
            ("max_inflight_bytes", 1 << 16, 1 << 40),
            ("visibility_ms", 1, DURATION_MS_MAX),
            ("nack_backoff_min_ms", 1, DURATION_MS_MAX),
            ("nack_backoff_max_ms", 1, DURATION_MS_MAX),
            ("dedupe_keys", 0, 1 << 24),
            ("dedupe_keys_total", 0, 1 << 26),
            ("retain_acked_for_ms", 0, DURATION_MS_MAX),
            ("shutdown_timeout_ms", 0, 3_600_000),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ConfigError(f"{name} must be {low} to {high}, not {value}")
        if self.nack_backoff_min_ms > self.nack_backoff_max_ms:
            raise ConfigError("nack_backoff_min_ms is above nack_backoff_max_ms")
        if self.fsync not in ("always", "interval", "never"):
            raise ConfigError(f"fsync is always, interval or never, not {self.fsync!r}")


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """One topic's settings: integers in milliseconds, bytes and counts. None means the broker's default."""

    visibility: int | None = None
    nack_backoff_min: int | None = None
    nack_backoff_max: int | None = None
    dedupe_keys: int | None = None
    retain_acked_for: int | None = None

    def changed(self, changes: Mapping[str, str]) -> "TopicSettings":
        """These settings with some of them set anew; ``default`` unsets one.

        Raises: BadArgument for a name that is not a setting here, or a value out of its range.
        """
        changed = replace(self, **{name: _parse_setting(name, text) for name, text in changes.items()})
        low, high = changed.nack_backoff_min, changed.nack_backoff_max
        if low is not None and high is not None and low > high:
            raise BadArgument("nack_backoff_min is above nack_backoff_max")
        return changed

    def to_json(self) -> dict[str, int]:
        """Those that are set."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "TopicSettings":
        """Raises: BadArgument."""
        return cls().changed({name: str(value) for name, value in found.items()})


_SETTING_LIMITS: dict[str, tuple[int, int]] = {
    "visibility": (1, DURATION_MS_MAX),
    "nack_backoff_min": (1, DURATION_MS_MAX),
    "nack_backoff_max": (1, DURATION_MS_MAX),
    "dedupe_keys": (0, 1 << 24),
    "retain_acked_for": (0, DURATION_MS_MAX),
}


def _parse_setting(name: str, text: str) -> int | None:
    limits = _SETTING_LIMITS.get(name)
    if limits is None:
        raise BadArgument(f"{name} is no topic setting here; there are {', '.join(sorted(_SETTING_LIMITS))}")
    if text == "default":
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 20 and limits[0] <= int(text) <= limits[1]):
        raise BadArgument(f"{name} is a whole number from {limits[0]} to {limits[1]}, or default")
    return int(text)
