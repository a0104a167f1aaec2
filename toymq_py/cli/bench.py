"""``toymq bench``: the program toymq-bench as a command."""

from importlib import import_module

import click

from toymq_py.command_line import missing
from toymq_py.errors import ConfigError

PROGRAM = "toymq_bench.cli"
"""The module of the program, by name: the broker's package imports none of the programs around it."""


@click.command(add_help_option=False, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def bench(arguments: tuple[str, ...]) -> None:
    """Measure a broker, as toymq-bench: throughput, latency, CPU."""
    try:
        program: click.Command = import_module(PROGRAM).main
        program.main(list(arguments), prog_name="toymq bench")
    except ModuleNotFoundError as error:
        if (line := missing(error)) is None:
            raise
        raise ConfigError(f"bench {line}") from None
