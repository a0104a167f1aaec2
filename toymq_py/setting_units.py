"""The settings of a topic: their limits, and which are durations or sizes. Contract: delivery.md, "Per-topic settings"."""

from typing import Literal, get_args

from toymq_py.units import DURATION_MS_MAX, duration_doubt, format_duration, format_size, parse_duration_ms, parse_size

WhenFull = Literal["reject", "drop-oldest"]
"""The effect of a publish beyond the backlog's limit."""

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
    "tier_local_bytes": (0, 1 << 62),
    "tier_local_age": (0, DURATION_MS_MAX),
}
"""The smallest and largest value of a number, or the words that a setting takes."""
DURATION_SETTINGS = frozenset(name for name, limits in SETTINGS.items() if limits[-1] == DURATION_MS_MAX)
MAY_BE_ZERO = frozenset(name for name in DURATION_SETTINGS if SETTINGS[name][0] == 0)
USUALLY_SHORT = frozenset(("nack_backoff_min", "nack_backoff_max"))
"""Those of ``DURATION_SETTINGS`` that are usually short; a value below a second is not doubted."""
SIZE_SETTINGS = frozenset(("backlog_max_bytes", "retain_max_bytes", "tier_local_bytes"))
"""The settings that are sizes. People write them, and durations, with a unit; on the wire both are integers, of bytes and of
milliseconds. The others are counts and words."""


def parse_setting(name: str, text: str) -> str:
    """Convert a topic setting as people write it, such as ``30s``, to the form in the protocols, ``30000``. Raises:
    ConfigError."""
    if text != "default" and name in DURATION_SETTINGS:
        return str(parse_duration_ms(text))
    if text != "default" and name in SIZE_SETTINGS:
        return str(parse_size(text))
    return text


def setting_doubt(name: str, found: object) -> str | None:
    """A question to the user about a topic setting (``duration_doubt``); None also for settings that are usually short."""
    return duration_doubt(found) if name in DURATION_SETTINGS and name not in USUALLY_SHORT else None


def format_setting(name: str, value: object) -> str:
    """The inverse of ``parse_setting``, exactly."""
    text = str(value)
    if text.isdigit() and name in DURATION_SETTINGS:
        return format_duration(int(text))
    if text.isdigit() and name in SIZE_SETTINGS:
        return format_size(int(text))
    return text
