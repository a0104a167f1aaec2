"""The options of ``toymq serve`` and where their values come from: command line > environment > ``toymq.toml`` > default.

Contract: clients.md, "Command lines". ``config.options`` defines the options and checks their values. click does the layering:
the file is its ``default_map``.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from toymq_py.config.option_schema import Flag, Kind, Number, Option, Several, did_you_mean, options_of, shown_key
from toymq_py.config.options import OVER_TLS, ServeOptions
from toymq_py.errors import ConfigError
from toymq_py.file_access import check_access
from toymq_py.text_files import parse_toml, read_text

OPTIONS = options_of(ServeOptions)
DEFAULT_FILE = "./toymq.toml"
"""The file of options that is read when it exists; a file that is named must exist."""
CONFIG_VARIABLE = "TOYMQ_CONFIG"
COMPILE_VARIABLE = "TOYMQ_MYPYC"
"""The environment variable of hatch_build.py that says whether a wheel is compiled."""
CLIENT_VARIABLES = ("TOYMQ_URL", "TOYMQ_CONTEXT", "TOYMQ_TOKEN", "TOYMQ_HTTP_URL", "TOYMQ_TLS_CA")
"""Environment variables of toymqctl and of client programs, which are not options of the broker."""
SHARED_VARIABLES = ("tls_cert", "tls_key")
"""Attributes whose environment variables toymqctl reads, too, as a client's certificate."""
AUTH_VARIABLE = "TOYMQ_AUTH_FILE"
_DOUBTS = "toymq_py.cli.options.doubts"

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class _Type(click.ParamType[Any]):
    """A kind of option value as a click type."""

    def __init__(self, kind: Kind, variable: str) -> None:
        self.name = kind.metavar.lower()
        self._kind = kind
        self._variable = variable

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        source = ctx.get_parameter_source(param.name) if ctx is not None and param is not None and param.name else None
        named = self._variable if source is ParameterSource.ENVIRONMENT else None
        try:
            found = self._kind.parse(value)
        except ConfigError as error:
            self.fail(f"{error}{f' (from {named})' if named else ''}", param, ctx)
        if ctx is not None and param is not None:
            _note_doubt(ctx, named or param.opts[0], self._kind, value)
        return found

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return self.name.upper() if "|" not in self.name else f"[{self.name}]"


def serve_options(command: Decorated) -> Decorated:
    """A decorator that gives a command ``--config`` and every option of ``ServeOptions``, by the names of the attributes."""
    for each in reversed(OPTIONS):
        command = _click_option(each)(command)
    return click.option(
        "--config",
        metavar="FILE",
        is_eager=True,  # before the others, whose defaults it gives
        callback=_take_file,
        help=f"TOML file of these options, under their names with _ for -; also {CONFIG_VARIABLE}.  "
        f"[default: {DEFAULT_FILE}, if it is there]",
    )(command)


def _click_option(each: Option) -> Callable[[Decorated], Decorated]:
    names = (each.flag, each.attribute)
    if isinstance(each.kind, Flag):
        return click.option(*names, is_flag=True, envvar=each.variable, help=each.help)
    several = isinstance(each.kind, Several)
    return click.option(
        *names,
        type=_Type(each.kind.each if isinstance(each.kind, Several) else each.kind, each.variable),
        multiple=several,
        default=None if each.default is None or several else each.kind.show(each.default),
        show_default=True,
        envvar=each.variable,
        help=each.help,
    )


def _take_file(ctx: click.Context, param: click.Parameter, named: str | None) -> str | None:
    found = find_file(named)
    if found is not None:
        text = configuration_text(found)
        ctx.default_map = _read(text, found)
        ctx.meta.setdefault(_DOUBTS, []).extend(doubts_of_file(text, found))
    return found


def doubts_of_file(text: str, path: str) -> list[str]:
    """Values of a file that may not mean what the user wanted, and that a directory above it may be replaced; one line for
    each. Raises: ConfigError when the file is not TOML."""
    kinds = {each.name: each.kind for each in OPTIONS}
    found = ((key, _doubt(kinds.get(key), value)) for key, value in parse_toml(text, path).items())
    access = check_access(path, "--config")
    return [*([] if access is None else [access]), *(f"{path}: {key} {doubt}" for key, doubt in found if doubt is not None)]


def _doubt(kind: Kind | None, value: object) -> str | None:
    return kind.doubt(value) if isinstance(kind, Number) else None


def _note_doubt(ctx: click.Context, where: str, kind: Kind, value: object) -> None:
    if (doubt := _doubt(kind, value)) is not None:
        ctx.meta.setdefault(_DOUBTS, []).append(f"{where} {doubt}")


def sources(ctx: click.Context, file: str | None) -> dict[str, str]:
    """The source of each option's value, by attribute: a flag, a variable, the file. Defaults are left out."""
    found = {}
    for each in OPTIONS:
        match ctx.get_parameter_source(each.attribute):
            case ParameterSource.COMMANDLINE:
                found[each.attribute] = each.flag
            case ParameterSource.ENVIRONMENT:
                found[each.attribute] = each.variable
            case ParameterSource.DEFAULT_MAP:
                found[each.attribute] = str(file)
            case _:
                pass
    return found


def without_a_clients(ctx: click.Context, values: dict[str, Any]) -> dict[str, Any]:
    """Drop values from environment variables of a client certificate if no listener has TLS: they are meant for toymqctl."""
    if any(values.get(option.removeprefix("--").replace("-", "_")) for option in OVER_TLS):
        return values
    kept = dict(values)
    for each in OPTIONS:
        if each.attribute in SHARED_VARIABLES and ctx.get_parameter_source(each.attribute) is ParameterSource.ENVIRONMENT:
            kept[each.attribute] = None
            line = f"{each.variable} is taken for toymqctl's and ignored: nothing listens with TLS ({', '.join(OVER_TLS)})"
            ctx.meta.setdefault(_DOUBTS, []).append(line)
    return kept


def doubts(ctx: click.Context) -> list[str]:
    """Values that may not mean what the user wanted, one line for each."""
    found: list[str] = ctx.meta.get(_DOUBTS, [])
    return list(dict.fromkeys(found))


def environment() -> tuple[click.Context, dict[str, Any], list[str]]:
    """What the environment variables of `toymq serve` say, as click reads them there.

    Returns: a context that has them as the source of their options, values by attribute, and errors, one line each.
    """
    command = click.command()(serve_options(lambda **_: None))
    ctx = click.Context(command)
    values: dict[str, Any] = {}
    problems = []
    variables = {each.attribute: each.variable for each in OPTIONS}
    for param in command.params:
        name = param.name
        if name not in variables or (found := param.value_from_envvar(ctx)) is None:
            continue
        ctx.set_parameter_source(name, ParameterSource.ENVIRONMENT)
        try:
            values[name] = param.type_cast_value(ctx, found)
        except click.BadParameter as error:
            problems.append(f"{variables[name]}: {error.message}")
    return ctx, values, problems


def find_file(named: str | None) -> str | None:
    """The configuration file in force: the one named on the command line or in the environment, otherwise the default if it
    exists."""
    named = named or os.environ.get(CONFIG_VARIABLE) or None
    if named is not None:
        return named
    return DEFAULT_FILE if Path(DEFAULT_FILE).exists() else None


def read_file(path: str) -> dict[str, Any]:
    """The values of a configuration file by attribute, each checked. Raises: ConfigError, which names file, key and value."""
    return _read(configuration_text(path), path)


def _read(text: str, path: str) -> dict[str, Any]:
    values, problems = look_into(text, path)
    if problems:
        more = f" (and {len(problems) - 1} more: see `toymq config check {path}`)" if problems[1:] else ""
        raise ConfigError(problems[0] + more)
    return values


def look_into(text: str, path: str) -> tuple[dict[str, Any], list[str]]:
    """Values by attribute from a file's text, and its errors, one line each. Raises: ConfigError when it is not TOML."""
    by_name = {each.name: each for each in OPTIONS}
    values: dict[str, Any] = {}
    problems = []
    for key, found in parse_toml(text, path).items():
        option = by_name.get(key)
        if option is None:
            problems.append(f"{path}: there is no option {shown_key(key)}{did_you_mean(key, by_name)}")
            continue
        try:
            values[option.attribute] = option.kind.from_toml(found)
        except ConfigError as error:
            problems.append(f"{path}: {key}: {error}")
    return values, problems


def configuration_text(path: str) -> str:
    """The text of a configuration file. Raises: ConfigError, which names the file; also when every user may change it."""
    check_access(path, "--config")
    return read_text(path, "the configuration")


def unknown_variables() -> list[str]:
    """Environment variables that are ignored and look like a mistake, one line for each: a misspelled option, and an auth file
    without a name. Other TOYMQ_… variables are ignored without a line: container platforms set some for a service named
    toymq."""
    known = [CONFIG_VARIABLE, COMPILE_VARIABLE, *CLIENT_VARIABLES, *(each.variable for each in OPTIONS)]
    lines = []
    for name in sorted(os.environ):
        if name.startswith("TOYMQ_") and name not in known and (hint := did_you_mean(name, known)):
            lines.append(f"{name} is not an option and is ignored{hint}")
    if os.environ.get(AUTH_VARIABLE) == "":  # an unfilled variable of a unit file, and every client may do everything
        lines.append(f"{AUTH_VARIABLE} is empty and is ignored: name the auth file, or unset it")
    return lines
