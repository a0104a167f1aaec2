"""``toymq definitions``: topics, consumers and webhooks as a file, of a running broker or of a stopped one's directory."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from toymq.url import DEFAULT_URL, parse_url
from toymq_py.config.definitions import Change, Definitions, change_to_json, parse, plan, to_json, to_toml
from toymq_py.errors import ConfigError

if TYPE_CHECKING:
    from toymq_py.cli.described_broker import Running, Stopped

Command = TypeVar("Command", bound=Callable[..., Any])


def _reached(
    data_dir: str | None, url: str, http_url: str | None, token_file: str | None
) -> AbstractContextManager["Running | Stopped"]:
    from toymq_py.cli.described_broker import reached  # `toymq --help` need not load a broker

    return reached(data_dir, url, http_url, token_file)


def _without_token(ctx: click.Context, param: click.Parameter, url: str) -> str:
    if ctx.get_parameter_source("url") is ParameterSource.COMMANDLINE and parse_url(url).token is not None:
        raise click.UsageError("a token in --url shows in the process list: use TOYMQ_TOKEN, --token-file or TOYMQ_URL")
    return url


def which_broker(command: Command) -> Command:
    """A command takes ``--data-dir``, or ``--url`` and ``--token-file``."""
    for option in (
        click.option(
            "--token-file",
            type=click.Path(exists=True, dir_okay=False),
            help="Has the token that the broker asks for; also TOYMQ_TOKEN, the token itself.",
        ),
        click.option(
            "--url", envvar="TOYMQ_URL", default=DEFAULT_URL, show_default=True, callback=_without_token,
            help="A running broker; also TOYMQ_URL.",
        ),
        click.option("--http-url", help="The gateway of that broker, http://host:port: webhooks are reached there."),
        click.option("--data-dir", help="The directory of a broker that is stopped, instead."),
    ):
        command = option(command)
    return command


file_argument = click.argument("file", type=click.File("r", encoding="utf-8"))


@click.group()
def definitions() -> None:
    """Topics, settings, consumers and webhooks as a file: TOML, or JSON when it begins with `{`.

    \b
        [[topic]]
        name = "orders"
        visibility = "2m"

    \b
        [[topic.consumer]]
        name = "billing"
        start = "latest"

    \b
        [[webhook]]
        name = "hooks"
        topic = "orders"
        url = "https://example.com/orders"

    A topic of the file gets the settings that stand there and no others. A consumer that is new is made at its start,
    earliest unless told; one that is there stays where it is. A webhook that is new or has no secret gets the
    file's, and none is written out. What the file does not name is left alone. `toymq serve --definitions FILE` does the
    same at every start.
    """


@definitions.command()
@which_broker
@click.option("--json", "as_json", is_flag=True, help="JSON, durations in ms, sizes in bytes; otherwise TOML.")
def export(*, data_dir: str | None, url: str, http_url: str | None, token_file: str | None, as_json: bool) -> None:
    """Print what a broker has. Where its consumers are is state, and not a part of it."""
    with _reached(data_dir, url, http_url, token_file) as broker:
        found = broker.present()
    click.echo(to_json(found) if as_json else to_toml(found), nl=False)


@definitions.command("import")
@file_argument
@which_broker
@click.option("--json", "as_json", is_flag=True, help="A JSON object per change, one a line.")
def import_(*, file: Any, data_dir: str | None, url: str, http_url: str | None, token_file: str | None, as_json: bool) -> None:
    """Make a broker have what stands in FILE (`-` for stdin), and print what was changed. Idempotent."""
    wanted = _read(file)
    with _reached(data_dir, url, http_url, token_file) as broker:
        broker.check(wanted)
        changes = broker.make(wanted)
    _print(changes, as_json)
    if not changes and not as_json:
        click.echo("nothing to change")


@definitions.command()
@file_argument
@which_broker
@click.option("--json", "as_json", is_flag=True, help="A JSON object per change, one a line.")
def diff(*, file: Any, data_dir: str | None, url: str, http_url: str | None, token_file: str | None, as_json: bool) -> None:
    """Print what `import` of FILE would change, and what the broker has beyond it (left alone).

    Exit code 1 when `import` would change something.
    """
    wanted = _read(file)
    with _reached(data_dir, url, http_url, token_file) as broker:
        broker.check(wanted)
        present = broker.present()
    changes = plan(wanted, present)
    _print(changes, as_json)
    if not as_json:
        for line in _beyond(wanted, present):
            click.echo(line)
    if changes:
        raise SystemExit(1)


def _read(file: Any) -> Definitions:
    try:
        return parse(file.read(), file.name)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file.name}: neither TOML nor JSON: {error}") from error


def _print(changes: list[Change], as_json: bool) -> None:
    for change in changes:
        click.echo(json.dumps(change_to_json(change)) if as_json else str(change))


def _beyond(wanted: Definitions, present: Definitions) -> Iterator[str]:
    for name, topic in present.topics.items():
        if name not in wanted.topics:
            yield f"  topic {name} is not in the file"
            continue
        for consumer in topic.consumers:
            if consumer not in wanted.topics[name].consumers:
                yield f"  consumer {name} {consumer} is not in the file"
    for name in present.webhooks:
        if name not in wanted.webhooks:
            yield f"  webhook {name} is not in the file"
