"""Settings of a topic as people write them: ``visibility=30s``. On the wire they are integers (protocol.md, "Framing")."""

from collections.abc import Mapping, Sequence

import click

from toymq_py.model import parse_duration_ms, parse_size

_MS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1))
_BYTES = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1))
DURATIONS = frozenset(("visibility", "nack_backoff_min", "nack_backoff_max", "retain_acked_for", "retain_max_age", "ttl"))
SIZES = frozenset(("backlog_max_bytes", "retain_max_bytes"))


def parse_settings(words: Sequence[str]) -> dict[str, str]:
    """``name=value`` by name. Which names there are, and their limits, the broker knows.

    Raises: UsageError, ConfigError.
    """
    settings: dict[str, str] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name or not text:
            raise click.UsageError(f"a setting is NAME=VALUE, visibility=30s say, not {word!r}")
        if name in settings:
            raise click.UsageError(f"{name} stands twice")
        if text != "default" and name in DURATIONS:
            text = str(parse_duration_ms(text))
        elif text != "default" and name in SIZES:
            text = str(parse_size(text))
        settings[name] = text
    return settings


def format_settings(settings: Mapping[str, object]) -> list[str]:
    """The inverse, exactly."""
    return [f"{name}={_shown(name, value)}" for name, value in settings.items()]


def _shown(name: str, value: object) -> str:
    units = _MS if name in DURATIONS else _BYTES if name in SIZES else ()
    if isinstance(value, int) and value > 0:
        for unit, factor in units:
            if value % factor == 0:
                return f"{value // factor}{unit}"
    return str(value)
