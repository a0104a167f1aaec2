"""Settings of a topic as people write them: ``visibility=30s``. On the wire they are integers (protocol.md, "Framing")."""

from collections.abc import Mapping, Sequence

import click

from toymq_py.model import DURATION_SETTINGS, SIZE_SETTINGS, format_setting, parse_setting

SETTINGS = sorted((*DURATION_SETTINGS, *SIZE_SETTINGS, "backlog_max_messages", "dedupe_keys", "max_attempts", "when_full"))
"""For completion only: the broker knows which there are."""


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
        settings[name] = parse_setting(name, text)
    return settings


def format_settings(settings: Mapping[str, object]) -> list[str]:
    """The inverse, exactly."""
    return [f"{name}={format_setting(name, value)}" for name, value in settings.items()]
