"""``toymq config``: show the options in force and where each comes from; check a file."""

import json
from typing import Any

import click

from toymq_py.cli.options import (
    DEFAULT_FILE,
    OPTIONS,
    configuration_text,
    doubts,
    doubts_of_file,
    environment,
    find_file,
    look_into,
    serve_options,
    sources,
    unknown_variables,
    without_a_clients,
)
from toymq_py.config.options import ServeOptions
from toymq_py.errors import ConfigError
from toymq_py.units import counted


@click.group(short_help="Show and check the options of `toymq serve`.")
def config() -> None:
    """Show and check the options of `toymq serve`, from command line, environment, file and defaults."""


@config.command(short_help="Show the options in force, and where each comes from.")
@serve_options
@click.option("--json", "as_json", is_flag=True, help="A JSON object per option, one a line; durations in ms, sizes in bytes.")
@click.pass_context
def show(ctx: click.Context, /, *, config: str | None, as_json: bool, **values: Any) -> None:
    """Show what `toymq serve` would run with, and where each value comes from.

    Takes the options of `toymq serve`: write `config show` in place of `serve`.

    \b
        toymq config show --data-dir /var/lib/toymq
    """
    found = sources(ctx, config)
    options = ServeOptions(**without_a_clients(ctx, values), sources=found)
    rows = [(each, getattr(options, each.attribute), found.get(each.attribute, "default")) for each in OPTIONS]
    if as_json:
        for each, value, source in rows:
            click.echo(json.dumps({"option": each.name, "value": value, "from": source}))
    else:
        cells = [("option", "value", "from"), *((each.name, each.show(value), source) for each, value, source in rows)]
        widths = [max(len(row[column]) for row in cells) for column in range(2)]
        for name, shown, source in cells:
            click.echo(f"{name:{widths[0]}}  {shown:{widths[1]}}  {source}")
    for line in (*doubts(ctx), *unknown_variables()):
        click.echo(f"toymq: {line}", err=True)


@config.command(short_help="Check a configuration file, and the environment.")
@click.argument("file", required=False)
@click.option("--config", "named", metavar="FILE", help="The same, as `toymq serve` takes it.")
def check(file: str | None, named: str | None) -> None:
    """Check the configuration FILE, by default the one that `toymq serve` would read, and the environment variables that
    override it there. Starts nothing.

    Also reads the files that they name: tokens, certificates and keys, definitions. Prints a line for each error, also for a
    file that every user of this machine may change; then the exit code is 1. A duration below a second without a unit, such as
    `visibility = 30`, and a key that others may read are questioned: that is no error.
    """
    from toymq_py.option_files import check_files  # `toymq --help` need not load TLS

    if file is not None and named is not None:
        raise click.UsageError("FILE and --config are the same: give one")
    ctx, of_environment, problems = environment()
    path = find_file(file if file is not None else named)
    if path is None and not of_environment and not problems:
        raise ConfigError(f"there is no {DEFAULT_FILE}: name a file")
    where = path or "the environment"
    text = "" if path is None else configuration_text(path)
    values: dict[str, Any] = {}
    try:
        values, of_file = look_into(text, where)
        problems = of_file + problems
    except ConfigError as error:
        problems.insert(0, str(error))
    warnings: list[str] = []
    in_force = without_a_clients(ctx, {**values, **of_environment})
    origins = dict.fromkeys(values, where)
    origins |= {each.attribute: each.variable for each in OPTIONS if each.attribute in of_environment}
    try:
        of_files, warnings = check_files(ServeOptions(**in_force, sources=origins))
        problems += of_files
    except ConfigError as error:
        problems.append(f"{where}: {error}")
    problems += unknown_variables()
    for line in problems:
        click.echo(line, err=True)
    if problems:
        raise SystemExit(1)
    warnings = ([] if path is None else doubts_of_file(text, path)) + doubts(ctx) + warnings
    for line in warnings:
        click.echo(line, err=True)
    used = {name for name, value in in_force.items() if value is not None}
    by_environment = len(used & of_environment.keys())
    also = f", {by_environment} by the environment" if by_environment else ""
    asked = f", with {counted(len(warnings), 'warning')}" if warnings else ""
    click.echo(f"{where}: ok, {counted(len(used), 'option')} set{also}{asked}")
