"""The ``toymqctl`` group; how a connection is made and how an error becomes one line and an exit code."""

import sys
from collections.abc import Callable

import click

import toymq_client
from toymq_client import sync
from toymq_client.url import DEFAULT_URL, parse_url
from toymq_py.errors import ConfigError, ProtocolViolation, RequestError, ToymqError
from toymqctl.ping import ping
from toymqctl.pub import pub
from toymqctl.sub import sub
from toymqctl.topics import topics


def explain(url: str, error: Exception) -> str:
    """One line that says what is wrong and, where we know, what to do."""
    if isinstance(error, toymq_client.ConnectFailed) and isinstance(error.__cause__, ConnectionRefusedError):
        return f"no broker at {parse_url(url)}: start one with `make run` or `toymq serve`, or name another with --url"
    if isinstance(error, ProtocolViolation):
        return f"{error}; is {parse_url(url)} the broker's TCP port?"
    if isinstance(error, toymq_client.SubscriptionEnded):
        reasons = {
            "TAKEN_OVER": "another session subscribed as the same consumer; choose another --consumer to have both",
            "DELETED": "the topic or the consumer was deleted",
        }
        return f"{error} ({reasons.get(error.code, 'see the broker')})"
    return f"{error.code}: {error}" if isinstance(error, RequestError) else str(error)


class _OneLineErrors(click.Group):
    def invoke(self, ctx: click.Context) -> object:
        url = ctx.params.get("url", DEFAULT_URL)
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            sys.stderr.close()  # the reader of our output went away: no noise about it
            raise SystemExit(0) from None
        except KeyboardInterrupt:
            raise SystemExit(130) from None
        except ConfigError as error:
            raise click.UsageError(str(error)) from None
        except (ToymqError, OSError) as error:
            click.echo(f"toymqctl: {explain(url, error)}", err=True)
            raise SystemExit(1) from None


@click.group(cls=_OneLineErrors, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="toymq_py", prog_name="toymqctl")
@click.option("--url", envvar="TOYMQ_URL", default=DEFAULT_URL, show_default=True, help="The broker; also TOYMQ_URL.")
@click.pass_context
def main(ctx: click.Context, url: str) -> None:
    """Talk to a toymq broker.

    \b
        toymqctl pub orders hello              publish one message
        seq 1000 | toymqctl pub orders         publish every line of stdin
        toymqctl sub orders                    print and ack what comes
        toymqctl topics                        what there is
    """
    parse_url(url)

    def connect() -> sync.Client:
        return sync.connect(url)

    ctx.obj = connect


Connect = Callable[[], sync.Client]

for command in (pub, sub, topics, ping):
    main.add_command(command)
