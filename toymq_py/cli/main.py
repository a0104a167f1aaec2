"""The ``toymq`` command group, and how an error becomes one line and an exit code (0 ok, 1 failed, 2 usage or unusable)."""

import sys
from typing import ClassVar

import click

from toymq_py.command_group import CommandGroup, said_by
from toymq_py.errors import LocalError, RequestError
from toymq_py.version import __version__

SECTIONS = {
    "Run it": ("serve", "worker", "workers", "config", "definitions"),
    "A data directory": ("verify", "repair", "backup", "restore", "tier", "dump"),
    "Try and learn": ("demo", "bench", "help"),
}
COMMANDS = tuple(name for names in SECTIONS.values() for name in names)
"""Commands, each loaded when it is run: a broker need not load the modules of other commands, a quarter of its time to
start."""
OF_TOYMQCTL = (
    "pub", "sub", "pull", "tail", "topics", "describe", "consumers", "create", "delete", "purge", "seek", "forget", "ack",
    "nack", "inspect", "dlq", "stats", "top", "ping", "doctor", "connections", "webhooks", "alerts", "cluster", "context",
    "token", "completion",
)  # fmt: skip
"""Commands of the other program, ``toymqctl``, which asks a running broker."""


class _Commands(CommandGroup):
    """The command group. A ``LocalError`` or ``OSError`` becomes one line on stderr and exit code 2: a user needs no traceback
    for a busy port."""

    meant: ClassVar = {name: f"toymqctl {name}" for name in OF_TOYMQCTL}
    places: ClassVar = {name: f"toymq_py.cli.{name}:{name}" for name in COMMANDS} | {
        "restore": "toymq_py.cli.backup:restore", "help": "toymq_py.cli.help:help_",
    }  # fmt: skip
    sections: ClassVar = SECTIONS

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except LocalError as error:
            click.echo(f"toymq: {error}", err=True)
        except RequestError as error:
            click.echo(f"toymq: {error.code}: {error}", err=True)
            raise SystemExit(1) from None
        except BrokenPipeError:
            sys.stderr.close()  # the reader has what it wanted, as `head` has
            raise SystemExit(0) from None
        except OSError as error:
            click.echo(f"toymq: {said_by(error)}", err=True)
        raise SystemExit(2)


@click.group("toymq", cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="toymq")
def main() -> None:
    """A small persistent message broker: OK means it is on the disk.

    Start one with `toymq serve`, then in another terminal:

    \b
        toymqctl pub orders hello
        toymqctl sub orders

    `toymq help quickstart` continues from here; `toymqctl --help` lists the commands for a running broker.
    """
