"""Command-line options that the scenarios share."""

from collections.abc import Callable
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from toymq.click_support import Duration
from toymq_bench.bench import Bench
from toymq_bench.report import lines
from toymq_bench.result import Session
from toymq_bench.traffic import Plan
from toymq_py.command_line import install_hint

POSITIVE = click.IntRange(1)
DATA_DIR = click.option(
    "--data-dir", "directory", type=click.Path(exists=True, file_okay=False, path_type=Path), default=".",
    help="Fresh directories are created below it and removed. Choose a real disk.",
)  # fmt: skip


class Address(click.ParamType[tuple[str, int]]):
    """The type of a click option that is ``HOST:PORT``."""

    name = "host:port"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        host, colon, port = str(value).rpartition(":")
        if not (host and colon and port.isdecimal() and 0 < int(port) < 65536):
            self.fail(f"invalid address {value!r}: write HOST:PORT", param, ctx)
        return host, int(port)


def output(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for files with the results to a command."""
    file = click.Path(dir_okay=False, path_type=Path)
    for option in (
        click.option("--plot", "picture", type=file, callback=_is_picture, help="Plot the results into a .png or .svg file."),
        click.option("--json", "json_file", type=file, help="Write the results to a file for `toymq-bench compare`."),
    ):
        command = option(command)
    return command


def _is_picture(_: click.Context, __: click.Parameter, path: Path | None) -> Path | None:
    """Check the file's suffix, so that a wrong one is refused before hours of work."""
    if path is None:
        return None
    if path.suffix not in (".png", ".svg"):
        raise click.BadParameter(f"invalid file {path}: its name has to end with .png or .svg")
    if find_spec("matplotlib") is None:
        raise click.UsageError(f"--plot needs matplotlib: {install_hint('plots')}")
    return path


def timing(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for the length of a run to a command."""
    for option in (
        click.option("--warmup", "warmup_s", type=Duration(), default="700ms", help="Time before measuring starts."),
        click.option("--seconds", type=Duration(least_ms=1), default="3s", help="Measured time of each run."),
    ):
        command = option(command)
    return command


def place(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for the directory and the number of runs to a command."""
    for option in (
        DATA_DIR,
        click.option("--runs", type=POSITIVE, default=3, help="Number of runs."),
    ):
        command = option(command)
    return command


def started(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of scenarios that start their own broker to a command.

    The command gets a ``Bench``. It may return lines to print instead of the report.
    """
    serve = click.argument("serve_options", nargs=-1, type=click.UNPROCESSED, metavar="[-- SERVE OPTIONS]")
    fsync = click.option("--fsync", type=click.Choice(["always", "interval", "never"]), default="always",
                         help="Durability of the broker.")  # fmt: skip

    @wraps(command)
    def run(
        *, seconds: float = 0, warmup_s: float = 0, runs: int, directory: Path, fsync: str, serve_options: tuple[str, ...],
        running: tuple[str, int, int] | None = None, json_file: Path | None, picture: Path | None, **values: Any,
    ) -> None:  # fmt: skip
        bench = Bench(Plan(seconds, warmup_s), runs, directory, ("--fsync", fsync, *serve_options), running)
        shown = command(bench, **values)
        session = bench.session()
        for line in shown or lines(session):
            click.echo(line)
        keep(session, json_file, picture)

    return output(place(fsync(serve(run))))


def attachable(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of scenarios that can also measure a running broker to a command."""
    inner = started(command)

    @click.option("--pid", type=POSITIVE, help="Process id of the running broker, for its CPU time and memory.")
    @click.option("--connect", type=Address(), help="Measure a running broker instead of starting one.")
    @wraps(inner)
    def run(*, connect: tuple[str, int] | None, pid: int | None, **values: Any) -> None:
        if (connect is None) != (pid is None):
            raise click.UsageError("--connect needs --pid, and --pid needs --connect")
        source = click.get_current_context().get_parameter_source
        for name, shown in (("fsync", "--fsync"), ("serve_options", "SERVE OPTIONS"), ("directory", "--data-dir")):
            if connect is not None and source(name) is click.core.ParameterSource.COMMANDLINE and values[name]:
                raise click.UsageError(f"--connect excludes {shown}: the broker runs already")
        if connect is not None and pid is not None:
            values["running"] = (*connect, pid)
        inner(**values)

    return run


def keep(session: Session, json_file: Path | None, picture: Path | None) -> None:
    """Write the result files that were asked for. Raises: OSError."""
    if json_file is not None:
        session.save(json_file)
    if picture is not None:
        from toymq_bench import chart

        chart.draw(session, picture)
