"""The ``toymqctl`` command group, which turns an error into one line and an exit code (0 ok, 1 failed, 2 usage)."""

import sys
from typing import ClassVar

import click
from click.core import ParameterSource

from toymq.click_support import HELP_SETTINGS
from toymq.url import DEFAULT_URL, parse_urls
from toymq_py.command_group import CommandGroup, said_by, say
from toymq_py.errors import ConfigError, EtcdError, ToymqError
from toymqctl.broker import Broker, show_warnings
from toymqctl.explanations import OF_ETCD, explain
from toymqctl.target import target_of

OF_TOYMQ = (
    "serve", "worker", "workers", "definitions", "verify", "repair", "backup", "restore", "tier", "dump", "demo", "bench",
    "help",
)  # fmt: skip
"""Commands of the other program, which serves a directory and works on one."""

OF_AMQP = "the page #/amqp of the dashboard (--http) shows"

WITHOUT_A_BROKER = ("cluster", "completion", "context", "token")
"""Commands that ask none: a context that is damaged or gone does not stop them."""


_ASKED = "toymqctl.cli.asked"
"""Of a context: the words behind the options of the program."""

SECTIONS = {
    "Messages": ("pub", "sub", "pull", "ack", "nack", "tail", "inspect"),
    "Topics and consumers": (
        "topics", "describe", "create", "config", "purge", "delete", "consumers", "seek", "forget", "dlq",
    ),
    "The broker": ("doctor", "stats", "top", "ping", "connections", "webhooks", "alerts", "cluster"),
    "This machine": ("context", "token", "completion"),
}  # fmt: skip
COMMANDS = tuple(name for names in SECTIONS.values() for name in names)
"""Loaded when asked for: all of them are a fifth of the time that one takes."""


class _OneLineErrors(CommandGroup):
    places: ClassVar = {name: f"toymqctl.{name}:{name}" for name in COMMANDS}
    meant: ClassVar = {
        **{name: f"toymq {name}" for name in OF_TOYMQ},
        "list": "toymqctl topics", "ls": "toymqctl topics", "consume": "toymqctl sub", "produce": "toymqctl pub",
        "get": "toymqctl pull",
    }  # fmt: skip
    elsewhere: ClassVar = {
        **dict.fromkeys(("queues", "list_queues"), f"`toymqctl topics` lists queues as topics, {OF_AMQP} those of AMQP"),
        **dict.fromkeys(("exchanges", "list_exchanges", "bindings", "list_bindings"), f"{OF_AMQP} them"),
    }
    sections: ClassVar = SECTIONS

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:  # fmt: skip
        ctx.meta[_ASKED] = list(args)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            sys.stderr.close()  # the reader of our output went away: no noise about it
            raise SystemExit(0) from None
        except ConfigError as error:
            say(self, str(error), _own(ctx))
        except ToymqError as error:
            line = explain(ctx.obj.address, error) if isinstance(ctx.obj, Broker) else _without_broker(error)
        except OSError as error:
            line = said_by(error)
        click.echo(f"toymqctl: {line}", err=True)
        raise SystemExit(1) from None


def _without_broker(error: ToymqError) -> str:
    is_silent = isinstance(error, EtcdError) and str(error).startswith("etcd does not answer")
    return f"{error}; {OF_ETCD}" if is_silent else str(error)


def _own(ctx: click.Context) -> click.Context:
    """Return the context of the command whose options are wrong, if that command asks no broker; for others that of
    ``toymqctl``, whose options (``--url``) are mostly the cause."""
    for word in ctx.meta.get(_ASKED, ()) if ctx.invoked_subcommand in WITHOUT_A_BROKER else ():
        found = ctx.command.get_command(ctx, word) if isinstance(ctx.command, click.Group) else None
        if found is None:
            break
        ctx = click.Context(found, ctx, word)
    return ctx


@click.group("toymqctl", cls=_OneLineErrors, context_settings=HELP_SETTINGS)
@click.version_option(package_name="toymq", prog_name="toymqctl")
@click.option(
    "--url", envvar="TOYMQ_URL",
    help=f"URL of the broker; of a cluster several nodes, toymq://a:6789,b:6789; also TOYMQ_URL.  [default: {DEFAULT_URL}]",
)  # fmt: skip
@click.option("--context", help="Use this broker of `toymqctl context`; also TOYMQ_CONTEXT.")
@click.option(
    "--http-url", envvar="TOYMQ_HTTP_URL",
    help="URL of its HTTP gateway, where the broker does not tell the right one; also TOYMQ_HTTP_URL.",
)  # fmt: skip
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False),
    help="File that holds the token; TOYMQ_TOKEN holds the token itself.",
)
@click.option("--token", envvar="TOYMQ_TOKEN", hidden=True, expose_value=True)
@click.option("--tls-ca", envvar="TOYMQ_TLS_CA", help="PEM file of the CA that signed the broker's certificate, for toymqs://.")
@click.option("--tls-cert", envvar="TOYMQ_TLS_CERT", help="PEM file of a client certificate, if the broker requires one.")
@click.option("--tls-key", envvar="TOYMQ_TLS_KEY", help="PEM file of the client certificate's key.")
@click.pass_context
def main(ctx: click.Context, /, url: str | None, context: str | None, **_given: str | None) -> None:
    """Talk to a toymq broker.

    \b
        toymqctl pub orders hello              publish one message
        seq 1000 | toymqctl pub orders         publish every line of stdin
        toymqctl sub orders                    print and ack messages as they come
        toymqctl pull jobs workers --wait 1m   lease one message of a work queue
        toymqctl tail orders -f                read without a consumer
        toymqctl topics                        list topics
        toymqctl doctor                        check the broker for trouble
    """
    if ctx.get_parameter_source("token") is ParameterSource.COMMANDLINE:
        raise click.UsageError("a token on the command line shows in the process list: use TOYMQ_TOKEN or --token-file")
    if ctx.get_parameter_source("url") is ParameterSource.COMMANDLINE and url is not None:
        if parse_urls(url)[0].token is not None:
            raise click.UsageError("a token in --url shows in the process list: use TOYMQ_TOKEN, --token-file or TOYMQ_URL")
        if context is not None:
            raise click.UsageError("--url and --context exclude each other: each names a broker")
    if ctx.invoked_subcommand not in WITHOUT_A_BROKER:
        broker = ctx.obj = target_of(ctx).broker()
        for name in ("tls_ca", "tls_cert", "tls_key"):
            if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE and not broker.address.tls:
                raise click.UsageError(f"--{name.replace('_', '-')} belongs to a broker with TLS: --url toymqs://host:port")
    show_warnings()
