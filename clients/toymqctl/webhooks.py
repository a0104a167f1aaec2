"""``toymqctl webhooks``: webhooks, which push the messages of a topic to a URL."""

from typing import Any

import click

from toymq.click_support import Duration
from toymq_py.names import is_pattern
from toymq_py.text_files import read_text
from toymqctl.broker import Broker
from toymqctl.gateway import gateway_of, path_of, say_part
from toymqctl.new_topics import is_new, say_made
from toymqctl.quantities import TOPIC
from toymqctl.tables import as_json as json_option
from toymqctl.tables import print_json, screen_room, table

_COLUMNS = ("webhook", "topic", "url", "signed", "state")


@click.group(invoke_without_command=True, short_help="Push the messages of a topic to a URL.")
@json_option
@click.pass_context
def webhooks(ctx: click.Context, *, as_json: bool) -> None:
    """Push the messages of a topic to a URL; without a command: list what is pushed.

    \b
        toymqctl webhooks set billing orders https://example.com/hook
        toymqctl webhooks set billing orders https://example.com/hook --secret-file secret
        toymqctl webhooks test billing         does the URL answer? pushes no message
        toymqctl webhooks                      list them, and why the last push failed
        toymqctl webhooks delete billing

    A webhook is a consumer: 2xx acks a message, anything else is retried until it is a dead letter. The broker needs --http
    or --https. A URL on its own machine or network needs --private-webhooks.
    """
    if ctx.invoked_subcommand is None:
        _show(ctx.obj, as_json=as_json)


@webhooks.command("list")
@json_option
@click.pass_obj
def list_webhooks(broker: Broker, *, as_json: bool) -> None:
    """List the webhooks, and why the last push of each failed."""
    _show(broker, as_json=as_json)


def _show(broker: Broker, *, as_json: bool) -> None:
    answer = gateway_of(broker).ask("GET", "/v1/webhooks")
    found = answer["webhooks"]
    if as_json:
        print_json(found)
        return
    say_part(answer, "webhooks")
    if found:
        rows = [
            (each["name"], each["topic"], each["url"], "yes" if each["secret"] else "no", "fails" if each["failure"] else "ok")
            for each in found
        ]
        click.echo(table([_COLUMNS, *rows], text=(0, 1, 2, 3, 4), room=screen_room()))
        for each in found:
            letters = each.get("letters", 0)
            if each["failure"] is not None:
                again = "" if letters else ", and is tried again"
                click.echo(f"{each['name']}: its last push was not taken{again}: {each['failure']}")
            if letters:
                listed = "" if is_pattern(each["topic"]) else f" {each['topic']}"
                click.echo(f"{each['name']}: dead letters since the broker's start: {letters} (`toymqctl dlq list{listed}`)")
    else:
        click.echo("no webhooks: `toymqctl webhooks set NAME TOPIC URL` makes one")


def read_secret(path: str | None) -> str | None:
    """Read the secret from a file; None without a path. Raises: ConfigError."""
    return None if path is None else read_text(path, "the secret in").strip()


secret_options = (
    click.option(
        "--secret-file", type=click.Path(exists=True, dir_okay=False),
        help="Sign with the secret in this file: any text, or whsec_ and base64. Without it a secret that is set stays.",
    ),
    click.option("--no-secret", is_flag=True, help="Sign no longer."),
)  # fmt: skip
"""Of commands that set what goes to a URL."""


@webhooks.command("set", short_help="Push the messages of a topic or of a pattern to a URL.")
@click.argument("name")
@click.argument("topic", type=TOPIC)
@click.argument("url")
@secret_options[0]
@secret_options[1]
@click.option("--timeout", "timeout_s", type=Duration(least_ms=1), default="10s", help="Longest wait for an answer; up to 1m.")
@click.option("--concurrency", type=click.IntRange(1, 64), default=1, help="Pushes at a time. With more than 1 order is lost.")
@click.pass_obj
def set_webhook(
    broker: Broker, name: str, topic: str, url: str, secret_file: str | None, timeout_s: float, concurrency: int, *,
    no_secret: bool,
) -> None:  # fmt: skip
    """Push the messages of TOPIC, or of a pattern, to URL; replaces the webhook NAME.

    The webhook begins at the first retained message, or where `toymqctl seek --create TOPIC webhook.NAME latest` has put its
    consumer; a replaced webhook goes on where it was. A push that is not taken is tried again as often as `max_attempts` of
    TOPIC says, then the message is a dead letter.
    """
    body: dict[str, Any] = {"topic": topic, "url": url, "timeout_ms": round(timeout_s * 1000), "concurrency": concurrency}
    body |= secret_member(secret_file, no_secret=no_secret)
    gateway = gateway_of(broker)
    makes = is_new(topic, lambda: gateway.ask("GET", path_of("topics", topic)))
    found = gateway.ask("PUT", path_of("webhooks", name), body)
    if makes:
        say_made(topic)
    click.echo(f"{name}: {found['topic']} to {found['url']}{', signed' if found['secret'] else ''}")


def secret_member(secret_file: str | None, *, no_secret: bool) -> dict[str, str | None]:
    """Return the member ``secret`` of a definition; {} to keep the secret that is set. Raises: UsageError, ConfigError."""
    if no_secret and secret_file is not None:
        raise click.UsageError("--secret-file and --no-secret exclude each other")
    if no_secret:
        return {"secret": None}
    return {} if secret_file is None else {"secret": read_secret(secret_file)}


@webhooks.command("delete")
@click.argument("name")
@click.pass_obj
def delete_webhook(broker: Broker, name: str) -> None:
    """Delete the webhook NAME and its consumers."""
    gateway_of(broker).ask("DELETE", path_of("webhooks", name))
    click.echo(f"deleted {name}")


@webhooks.command("test")
@click.argument("name")
@click.pass_obj
def test_webhook(broker: Broker, name: str) -> None:
    """Push a test to the URL of the webhook NAME, once. Exit code 1 when it is not taken."""
    say_tested(name, gateway_of(broker).ask("POST", path_of("webhooks", name) + ":test")["failure"])


def say_tested(name: str, failure: str | None) -> None:
    """Print the outcome of a test. Raises: SystemExit when it failed."""
    if failure is None:
        click.echo(f"{name}: taken")
        return
    click.echo(f"toymqctl: {name}: {failure}", err=True)
    raise SystemExit(1)
