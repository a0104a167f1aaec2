"""The ``toymqctl`` group, and how an error becomes one line and an exit code (0 ok, 1 failed, 2 usage)."""

import sys
from typing import ClassVar

import click
from click.core import ParameterSource

from toymq.click_support import HELP_SETTINGS
from toymq.url import DEFAULT_URL, address_with_token, parse_urls, split_url
from toymq_py.command_group import CommandGroup, said_by, say
from toymq_py.errors import ConfigError, ToymqError
from toymqctl.ack import ack
from toymqctl.broker import Broker, Certificates, show_warnings
from toymqctl.cluster import cluster
from toymqctl.completion import completion
from toymqctl.config import config
from toymqctl.consumers import consumers
from toymqctl.create import create
from toymqctl.delete import delete
from toymqctl.describe import describe
from toymqctl.dlq import dlq
from toymqctl.doctor import doctor
from toymqctl.explanations import explain
from toymqctl.forget import forget
from toymqctl.nack import nack
from toymqctl.ping import ping
from toymqctl.pub import pub
from toymqctl.pull import pull
from toymqctl.purge import purge
from toymqctl.seek import seek
from toymqctl.stats import stats
from toymqctl.sub import sub
from toymqctl.tail import tail
from toymqctl.token import token as token_command
from toymqctl.top import top
from toymqctl.topics import topics

OF_TOYMQ = ("serve", "worker", "definitions", "verify", "repair", "backup", "restore", "dump", "demo")
"""Commands of the other program, which serves a directory and works on one."""


class _OneLineErrors(CommandGroup):
    meant: ClassVar = {
        **{name: f"toymq {name}" for name in OF_TOYMQ},
        "list": "toymqctl topics", "ls": "toymqctl topics", "consume": "toymqctl sub", "produce": "toymqctl pub",
    }  # fmt: skip

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            sys.stderr.close()  # the reader of our output went away: no noise about it
            raise SystemExit(0) from None
        except ConfigError as error:
            say(self, str(error), ctx)
        except ToymqError as error:
            line = explain(ctx.obj.address, error) if isinstance(ctx.obj, Broker) else str(error)
        except OSError as error:
            line = said_by(error)
        click.echo(f"toymqctl: {line}", err=True)
        raise SystemExit(1) from None

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of use, not of the alphabet."""
        return list(self.commands)


@click.group("toymqctl", cls=_OneLineErrors, context_settings=HELP_SETTINGS)
@click.version_option(package_name="toymq", prog_name="toymqctl")
@click.option(
    "--url", envvar="TOYMQ_URL", default=DEFAULT_URL,
    help="URL of the broker; of a cluster several nodes, toymq://a:6789,b:6789; also TOYMQ_URL.",
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
def main(
    ctx: click.Context, url: str, token_file: str | None, token: str | None,
    tls_ca: str | None, tls_cert: str | None, tls_key: str | None,
) -> None:  # fmt: skip
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
    if ctx.get_parameter_source("url") is ParameterSource.COMMANDLINE and parse_urls(url)[0].token is not None:
        raise click.UsageError("a token in --url shows in the process list: use TOYMQ_TOKEN, --token-file or TOYMQ_URL")
    for option in ("tls_ca", "tls_cert", "tls_key"):
        if ctx.get_parameter_source(option) is ParameterSource.COMMANDLINE and not parse_urls(url)[0].tls:
            raise click.UsageError(f"--{option.replace('_', '-')} belongs to a broker with TLS: --url toymqs://host:port")
    address, *others = (address_with_token(each, token, token_file) for each in split_url(url))
    ctx.obj = Broker(address, Certificates(tls_ca, tls_cert, tls_key), tuple(others))
    show_warnings()


for command in (
    pub, sub, pull, tail, topics, describe, consumers, create, config, delete, purge, seek, forget, ack, nack, dlq, stats,
    top, ping, doctor, cluster, token_command, completion,
):  # fmt: skip
    main.add_command(command)
