"""The ``toymq`` group, and how an error becomes one line and an exit code (0 ok, 1 failed, 2 usage or unusable)."""

import sys

import click

from toymq_py import __version__
from toymq_py.cli.backup import backup, restore
from toymq_py.cli.config import config
from toymq_py.cli.definitions import definitions
from toymq_py.cli.demo import demo
from toymq_py.cli.dump import dump
from toymq_py.cli.repair import repair
from toymq_py.cli.serve import serve
from toymq_py.cli.verify import verify
from toymq_py.errors import LocalError, RequestError


class _OneLineErrors(click.Group):
    """A ``LocalError`` or ``OSError`` is said in one line on stderr, exit code 2: nobody wants a traceback for a busy port."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except LocalError as error:
            click.echo(f"toymq: {error}", err=True)
        except RequestError as error:
            click.echo(f"toymq: {error.code}: {error}", err=True)
            raise SystemExit(1) from None
        except BrokenPipeError:
            sys.stderr.close()  # the reader went away: no noise about it
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            click.echo(f"toymq: {where}{error.strerror or error}", err=True)
        raise SystemExit(2)


@click.group(cls=_OneLineErrors, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="toymq")
def main() -> None:
    """A small persistent message broker: OK means it is on the disk.

    Start one with `toymq serve`, then in another terminal:

    \b
        toymqctl pub orders hello
        toymqctl sub orders
    """


for command in (serve, config, definitions, verify, repair, backup, restore, dump, demo):
    main.add_command(command)
