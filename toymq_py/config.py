"""Options of the broker and settings of a topic: frozen, checked once, units last in the name.

Contract: clients.md, "Command lines"; delivery.md, "Per-topic settings". Where a value comes from (command line, environment,
file) is the command line's business; here are names, units, defaults and limits.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from toymq_py.errors import BadArgument, ConfigError
from toymq_py.model import DEFAULT_MAX_PAYLOAD, DURATION_MS_MAX, PAYLOAD_BYTES_LIMIT

FsyncMode = Literal["always", "interval", "never"]
WhenFull = Literal["reject", "drop-oldest"]
"""What a publish beyond the backlog's limit does."""


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
    max_attempts: int = 20
    """Deliveries after which a message is a dead letter; 0: for ever."""
    nack_backoff_min_ms: int = 100
    nack_backoff_max_ms: int = 30_000
    dedupe_keys: int = 65_536
    """Per topic."""
    dedupe_keys_total: int = 1_000_000
    retain_acked_for_ms: int = 24 * 3_600_000
    shutdown_timeout_ms: int = 5_000
    metrics_objects: int = 20_000
    """Topics and consumers with series of their own in a scrape; the others are added up."""
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
            ("max_attempts", 0, 1 << 20),
            ("nack_backoff_min_ms", 1, DURATION_MS_MAX),
            ("nack_backoff_max_ms", 1, DURATION_MS_MAX),
            ("dedupe_keys", 0, 1 << 24),
            ("dedupe_keys_total", 0, 1 << 26),
            ("retain_acked_for_ms", 0, DURATION_MS_MAX),
            ("shutdown_timeout_ms", 0, 3_600_000),
            ("metrics_objects", 0, 1 << 20),
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
    """One topic's settings: integers in milliseconds, bytes and counts, and words. None means the broker's default.

    Their limits stand in ``SETTINGS``. Contract: delivery.md, "Per-topic settings".
    """

    visibility: int | None = None
    max_attempts: int | None = None
    """Deliveries after which a message is a dead letter; 0: for ever."""
    nack_backoff_min: int | None = None
    nack_backoff_max: int | None = None
    dedupe_keys: int | None = None
    backlog_max_messages: int | None = None
    """None: no limit. So with the next one, and with what is retained at most."""
    backlog_max_bytes: int | None = None
    when_full: WhenFull | None = None
    """None: ``reject``."""
    retain_acked_for: int | None = None
    retain_max_age: int | None = None
    retain_max_bytes: int | None = None
    ttl: int | None = None
    """None: messages that bring no ttl of their own never expire."""

    def changed(self, changes: Mapping[str, str]) -> "TopicSettings":
        """These settings with some of them set anew; ``default`` unsets one.

        Raises: BadArgument for a name that is not a setting here, or a value out of its range.
        """
        values: dict[str, Any] = {name: _parse_setting(name, text) for name, text in changes.items()}
        changed = replace(self, **values)
        low, high = changed.nack_backoff_min, changed.nack_backoff_max
        if low is not None and high is not None and low > high:
            raise BadArgument("nack_backoff_min is above nack_backoff_max")
        return changed

    def to_json(self) -> dict[str, int | str]:
        """Those that are set."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "TopicSettings":
        """Raises: BadArgument."""
        return cls().changed({name: str(value) for name, value in found.items()})


SETTINGS: dict[str, tuple[int, int] | tuple[str, ...]] = {
    "visibility": (1, DURATION_MS_MAX),
    "max_attempts": (0, 1 << 20),
    "nack_backoff_min": (1, DURATION_MS_MAX),
    "nack_backoff_max": (1, DURATION_MS_MAX),
    "dedupe_keys": (0, 1 << 24),
    "backlog_max_messages": (1, 1 << 62),
    "backlog_max_bytes": (1, 1 << 62),
    "when_full": get_args(WhenFull),
    "retain_acked_for": (0, DURATION_MS_MAX),
    "retain_max_age": (1, DURATION_MS_MAX),
    "retain_max_bytes": (1, 1 << 62),
    "ttl": (1, DURATION_MS_MAX),
}
"""Smallest and largest of a number, or the words that a setting takes."""


def _parse_setting(name: str, text: str) -> int | str | None:
    limits = SETTINGS.get(name)
    if limits is None:
        raise BadArgument(f"{name} is no topic setting; there are {', '.join(SETTINGS)}")
    if text == "default":
        return None
    low, high = limits[0], limits[-1]
    if isinstance(low, str) or isinstance(high, str):
        if text not in limits:
            raise BadArgument(f"{name} is {' or '.join(map(str, limits))}, or default")
        return text
    if not (text.isascii() and text.isdigit() and len(text) <= 20 and low <= int(text) <= high):
        raise BadArgument(f"{name} is a whole number from {low} to {high}, or default")
    return int(text)
