"""Shared parts of the command lines: durations as an option's type, and expected errors as one line.

The only module of this package that needs click; applications do not load it.
"""

import re
from typing import Any

import click

from toymq_py.command_group import CommandGroup, said_by
from toymq_py.errors import ConfigError, ToymqError
from toymq_py.units import DURATION_MS_MAX, parse_duration_ms

HELP_SETTINGS = {"help_option_names": ["-h", "--help"], "show_default": True}
"""The context settings of a group: ``-h`` is an option, too, and all defaults are shown."""
_QUANTITY = re.compile(r"(\d{1,19}(?:\.\d+)?)\s*([a-z]*)\Z", re.ASCII)


class Duration(click.ParamType[float]):
    """The type of a click option that is a duration: ``500ms``, ``5s``, ``2m`` or plain seconds, ``0.5``. Its value is in
    seconds."""

    name = "duration"

    def __init__(self, *, least_ms: int = 0) -> None:
        self._least_ms = least_ms

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        match = _QUANTITY.match(str(value))
        try:
            unit_ms = parse_duration_ms(f"1{match[2] or 's'}") if match is not None else 0
        except ConfigError:
            unit_ms = 0
        if match is None or not unit_ms:
            self.fail(f"invalid duration {value!r}: write 500ms, 5s or 2m", param, ctx)
        duration_ms = float(match[1]) * unit_ms
        if not self._least_ms <= duration_ms <= DURATION_MS_MAX:
            self.fail(f"invalid duration {value!r}: write {self._least_ms}ms to ten years", param, ctx)
        return duration_ms / 1000


class OneLineErrors(CommandGroup):
    """A click command group that prints an expected error as one line on stderr and exits with ``failure_code``."""

    def __init__(self, *args: Any, failure_code: int = 1, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._failure_code = failure_code

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except OSError as error:
            click.echo(f"{self.name}: {said_by(error)}", err=True)
        except ToymqError as error:
            click.echo(f"{self.name}: {error}", err=True)
        raise SystemExit(self._failure_code)
