"""Settings of a topic as people write them: ``visibility=30s``. On the wire they are integers (protocol.md, "Framing")."""

from collections.abc import Mapping, Sequence

import click

from toymq import arguments
from toymq.message import Settings
from toymq_py.errors import BadArgument
from toymq_py.model import DURATION_SETTINGS, SIZE_SETTINGS, format_setting

SETTINGS = sorted((*DURATION_SETTINGS, *SIZE_SETTINGS, "backlog_max_messages", "dedupe_keys", "max_attempts", "when_full"))
"""For completion only: the broker knows which there are."""


def parse_settings(words: Sequence[str]) -> dict[str, str]:
    """``name=value`` by name, for a client's ``create`` and ``config``. Which there are, and their limits, the broker knows.

    Raises: UsageError.
    """
    settings: dict[str, str] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name or not text:
            raise click.UsageError(f"a setting is NAME=VALUE, visibility=30s say, not {word!r}")
        if name in settings:
            raise click.UsageError(f"{name} stands twice")
        settings[name] = text
    _on_the_wire(settings)
    return settings


def in_wire_units(found: Settings) -> dict[str, int | str]:
    """What a client says of a topic, in milliseconds and bytes."""
    return {name: int(text) if text.isdigit() else text for name, text in _on_the_wire(found).items()}


def _on_the_wire(settings: Settings) -> dict[str, str]:
    """Raises: UsageError."""
    try:
        return arguments.settings(settings)
    except BadArgument as error:
        raise click.UsageError(str(error)) from None


def format_settings(settings: Mapping[str, object]) -> list[str]:
    """The inverse, exactly, of settings in milliseconds and bytes."""
    return [f"{name}={format_setting(name, value)}" for name, value in settings.items()]
