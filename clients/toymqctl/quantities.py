"""Parameter types of the command line: ids, and names completed from the broker."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime

import click
from click.shell_completion import CompletionItem

from toymq import sync
from toymq.message import parse_ranges
from toymq_py.consumer_options import Start
from toymq_py.errors import BadArgument, ConfigError, ToymqError
from toymq_py.names import is_pattern
from toymq_py.records import IdRange
from toymq_py.units import parse_duration_ms, parse_number, parse_time_ns
from toymqctl.settings import SETTINGS
from toymqctl.target import target_of

COMPLETION_S = 0.5
"""Time that completion waits for the broker."""


TIMES = "@-5m, @2026-11-30T00:50:00Z or @<unix-ms>"
"""How a time is written in a position."""


class Ids(click.ParamType[tuple[IdRange, ...]]):
    """The type of a click argument that is ranges of ids: ``7``, ``3-9`` or ``3-9,12,20-31``."""

    name = "ids"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[IdRange, ...]:
        try:
            return parse_ranges(str(value))
        except BadArgument as error:
            self.fail(str(error), param, ctx)


def say_why_fewer(count: int, ids: tuple[IdRange, ...], what: str) -> None:
    """Say on stderr that a command took fewer messages than were named. That is no error: the command may be a repeat."""
    named = sum(last - first + 1 for first, last in ids)
    if count < named:
        click.echo(f"toymqctl: {named - count} of {named} {'is' if named - count == 1 else 'are'} not {what}", err=True)


class MessageId(click.ParamType[int]):
    """The type of a click argument that is a message's id."""

    name = "id"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return parse_number("message id", str(value))
        except BadArgument as error:
            self.fail(str(error), param, ctx)


class PositionType(click.ParamType[Start]):
    """The type of a click argument that is a position: ``earliest``, ``latest``, an id or a time (``@<unix-ms>``,
    ``@2026-11-28T09:30:00Z``, ``@-5m`` for five minutes ago)."""

    name = "position"

    def __init__(self, parse: Callable[[str], Start] = Start.parse_checked) -> None:
        self._parse = parse

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Start:
        try:
            return self._parse(_with_unix_ms(str(value)))
        except (BadArgument, ConfigError) as error:
            said = str(error)
            if said.startswith(("invalid position", "invalid time")):  # the wire knows fewer
                said = f"invalid position {str(value)[:50]!a}: write earliest, latest, a message id or a time, {TIMES}"
            self.fail(said, param, ctx)


def _with_unix_ms(position: str) -> str:
    """Convert a position to the form that the broker takes, with times as ``@<unix-ms>``. Raises: ConfigError for an invalid
    time."""
    text = position.removeprefix("@")
    if text == position or text.isdecimal():
        return position
    if text.startswith("-"):
        return f"@{int(datetime.now(UTC).timestamp() * 1000) - parse_duration_ms(text[1:])}"
    return f"@{parse_time_ns(text) // 1_000_000}"


class _Name(click.ParamType[str], ABC):
    """The type of a click argument that is a name, which the shell completes with the broker's names; without a broker it
    completes nothing."""

    name = "name"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        with suppress(ToymqError, OSError):
            broker = target_of(ctx.find_root()).broker()
            with broker.connect(connect_timeout_s=COMPLETION_S, timeout_s=COMPLETION_S, wait_s=0.0) as client:
                return [CompletionItem(name) for name in self.names(client, ctx) if name.startswith(incomplete)]
        return []

    @abstractmethod
    def names(self, client: sync.Client, ctx: click.Context) -> Iterable[str]:
        """Ask the broker for the names to complete."""


class TopicName(_Name):
    name = "topic"

    def names(self, client: sync.Client, ctx: click.Context) -> Iterable[str]:
        return [topic["topic"] for topic in client.topics()]


class ConsumerName(_Name):
    """A consumer's name, completed with the consumers of the topic; with all consumers when click has not parsed the topic
    yet."""

    name = "consumer"

    def names(self, client: sync.Client, ctx: click.Context) -> Iterable[str]:
        topic = ctx.params.get("topic")
        found = client.topics(topic) if topic is None or is_pattern(topic) else [client.describe(topic)]
        return sorted({consumer["consumer"] for each in found for consumer in each["consumers"]})


class SettingWord(click.ParamType[str]):
    """A setting, ``visibility=30s``; the shell completes the names of settings."""

    name = "setting"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(f"{name}=") for name in SETTINGS if name.startswith(incomplete)]


TOPIC = TopicName()
CONSUMER = ConsumerName()
SETTING = SettingWord()
POSITION = PositionType()
POSITION_TO_READ = PositionType(Start.parse)
"""Of what moves and makes no consumer: a mistake in it does no harm."""
