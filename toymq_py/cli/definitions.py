"""``toymq definitions``: export and apply topics, consumers, webhooks, alerts, and exchanges, queues and bindings of AMQP as a
file; with a running broker, or with the directory of a stopped one."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from toymq.url import DEFAULT_URL, parse_url
from toymq_py.config.definitions import Change, Definitions, change_to_json, parse, plan, to_json, to_toml
from toymq_py.errors import ConfigError
from toymq_py.text_files import read_bounded

if TYPE_CHECKING:
    from toymq_py.cli.described_broker import RunningBroker, StoppedBroker

Command = TypeVar("Command", bound=Callable[..., Any])


def _open_described(
    data_dir: str | None, url: str, http_url: str | None, token_file: str | None
) -> AbstractContextManager["RunningBroker | StoppedBroker"]:
    from toymq_py.cli.described_broker import open_described  # `toymq --help` need not load a broker

    return open_described(data_dir, url, http_url, token_file)


def _without_token(ctx: click.Context, param: click.Parameter, url: str) -> str:
    if ctx.get_parameter_source("url") is ParameterSource.COMMANDLINE and parse_url(url).token is not None:
        raise click.UsageError("a token in --url shows in the process list: use TOYMQ_TOKEN, --token-file or TOYMQ_URL")
    return url


def which_broker(command: Command) -> Command:
    """Options of a command that takes ``--data-dir``, or ``--url``, ``--http-url`` and ``--token-file``."""
    for option in (
        click.option(
            "--token-file",
            type=click.Path(exists=True, dir_okay=False),
            help="File of the token for a broker with an auth file; TOYMQ_TOKEN is the token itself.",
        ),
        click.option(
            "--url", envvar="TOYMQ_URL", default=DEFAULT_URL, show_default=True, callback=_without_token,
            help="Address of a running broker; also TOYMQ_URL.",
        ),
        click.option(
            "--http-url", envvar="TOYMQ_HTTP_URL",
            help="HTTP gateway of the broker, for webhooks, alerts and AMQP; also TOYMQ_HTTP_URL. Default: as the broker says.",
        ),
        click.option("--data-dir", help="Data directory of a stopped broker, instead of --url."),
    ):
        command = option(command)
    return command


file_argument = click.argument("file", type=click.File("r", encoding="utf-8"))


@click.group(short_help="Keep topics, settings, webhooks, alerts in a file.")
def definitions() -> None:
    """Export and import topics, settings, consumers, webhooks, alerts, and exchanges, queues and bindings of AMQP.

    A file is TOML, or JSON if it begins with `{`.

    \b
        toymq definitions export > topics.toml
        toymq definitions diff topics.toml --url toymq://other:6789
        toymq definitions import topics.toml --url toymq://other:6789

    The file:

    \b
        [[topic]]
        name = "orders"
        visibility = "2m"

    \b
        [[topic.consumer]]
        name = "billing"
        start = "latest"

    \b
        [[topic]]
        name = "jobs"
        partitions = 8

    \b
        [[webhook]]
        name = "hooks"
        topic = "orders"
        url = "https://example.com/orders"

    \b
        [[alert]]
        name = "late"
        when = "lag"
        topic = "orders"
        threshold = 10000
        to = "alerts"

    \b
        [[exchange]]
        name = "orders"
        type = "topic"

    \b
        [[queue]]
        name = "mails"
        arguments = {x-message-ttl = 60000}

    \b
        [[binding]]
        source = "orders"
        queue = "mails"
        routing_key = "orders.*"

    A topic in the file gets exactly the settings of the file. A new consumer begins at `start` (default: earliest); an
    existing consumer keeps its position. A new webhook or alert, or one without a secret, gets the secret of the file; an
    export shows no secrets. Import leaves alone what the file does not name. `toymq serve --definitions FILE` imports at
    every start.
    """


@definitions.command(short_help="Print the definitions of a broker.")
@which_broker
@click.option("--json", "as_json", is_flag=True, help="JSON, durations in ms, sizes in bytes; otherwise TOML.")
def export(*, data_dir: str | None, url: str, http_url: str | None, token_file: str | None, as_json: bool) -> None:
    """Print the definitions of a broker, without the positions of its consumers."""
    with _open_described(data_dir, url, http_url, token_file) as broker:
        found = broker.present()
        _say_left_out(broker)
    click.echo(to_json(found) if as_json else to_toml(found), nl=False)


@definitions.command("import", short_help="Create and change what FILE defines.")
@file_argument
@which_broker
@click.option("--json", "as_json", is_flag=True, help="A JSON object per change, one a line.")
def import_(*, file: Any, data_dir: str | None, url: str, http_url: str | None, token_file: str | None, as_json: bool) -> None:
    """Create and change what FILE defines (`-`: stdin), and print the changes. A second import changes nothing."""
    wanted = _read(file)
    with _open_described(data_dir, url, http_url, token_file) as broker:
        broker.check(wanted)
        changes = broker.apply(wanted)
    _print(changes, as_json)
    if not changes and not as_json:
        click.echo("nothing to change")


@definitions.command(short_help="Print what `import` of FILE would change.")
@file_argument
@which_broker
@click.option("--json", "as_json", is_flag=True, help="A JSON object per change, one a line.")
def diff(*, file: Any, data_dir: str | None, url: str, http_url: str | None, token_file: str | None, as_json: bool) -> None:
    """Print what `import` of FILE would change, and what the broker has that FILE does not name.

    A change that `import` would refuse says so. Exit code 1 when `import` would change something.
    """
    wanted = _read(file)
    with _open_described(data_dir, url, http_url, token_file) as broker:
        broker.check(wanted)
        present = broker.present()
        _say_left_out(broker)
    changes = plan(wanted, present)
    _print(changes, as_json, broker.refusal)
    if not as_json:
        for line in _beyond(wanted, present):
            click.echo(line)
    if changes:
        raise SystemExit(1)


def _read(file: Any) -> Definitions:
    try:
        wanted = parse(read_bounded(file, file.name), file.name)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file.name}: neither TOML nor JSON: {error}") from error
    for line in wanted.doubts:
        click.echo(f"toymq: {line}", err=True)
    return wanted


def _say_left_out(broker: "RunningBroker | StoppedBroker") -> None:
    if broker.left_out is not None:
        click.echo(f"toymq: topics and consumers alone: {broker.left_out}", err=True)


def _print(changes: list[Change], as_json: bool, refusal: Callable[[Change], str | None] = lambda _: None) -> None:
    for change in changes:
        why = refusal(change)
        if as_json:
            click.echo(json.dumps(change_to_json(change) | ({} if why is None else {"refused": why})))
        else:
            click.echo(str(change) if why is None else f"{change}; import refuses it: {why}")


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
    for name in present.alerts:
        if name not in wanted.alerts:
            yield f"  alert {name} is not in the file"
    for key, definition in present.amqp.items():
        if key not in wanted.amqp:
            yield f"  {definition.name} is not in the file"
