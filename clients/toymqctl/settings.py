"""Topic settings on the command line: ``visibility=30s``. On the wire they are integers (protocol.md, "Framing")."""

from collections.abc import Mapping, Sequence

import click

from toymq import arguments
from toymq.message import Settings
from toymq_py import setting_units
from toymq_py.errors import BadArgument
from toymq_py.setting_units import format_setting

SETTINGS = sorted(setting_units.SETTINGS)
"""Names for completion; the broker checks them."""


def parse_settings(words: Sequence[str]) -> dict[str, str]:
    """Parse ``name=value`` words to a dict for a client's ``create`` and ``config``. The broker checks names and limits.

    Raises: UsageError.
    """
    settings: dict[str, str] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name or not text:
            raise click.UsageError(f"invalid setting {word!r}: write NAME=VALUE, for example visibility=30s")
        if name in settings:
            raise click.UsageError(f"{name} is given twice: give it once")
        settings[name] = text
    _on_the_wire(settings)
    return settings


def in_wire_units(found: Settings) -> dict[str, int | str]:
    """Convert a topic's settings from a client's units to those of the wire: milliseconds and bytes."""
    return {name: int(text) if text.isdigit() else text for name, text in _on_the_wire(found).items()}


def _on_the_wire(settings: Settings) -> dict[str, str]:
    """Convert settings to the texts that the wire has. Raises: UsageError."""
    try:
        return arguments.settings(settings, label=str)
    except BadArgument as error:
        raise click.UsageError(str(error)) from None


def format_settings(settings: Mapping[str, object]) -> list[str]:
    """Format settings, in milliseconds and bytes, as ``name=value`` words that ``parse_settings`` reads back exactly."""
    return [f"{name}={format_setting(name, value)}" for name, value in settings.items()]
