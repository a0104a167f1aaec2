"""Durations and expected errors of command lines."""

import click
import pytest
from click.testing import CliRunner

from toymq.click_support import Duration, OneLineErrors
from toymq_bench.cli import main as bench
from toymq_py.cli.main import main as broker
from toymq_py.errors import BadArgument, ConfigError
from toymqctl.cli import main as ctl


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ms", 0.5), ("5s", 5), ("2m", 120), ("30 s", 30), ("1.5h", 5400), ("3", 3), ("0.25", 0.25), ("0", 0)],
)
def test_a_duration_has_a_unit_or_is_in_seconds(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == seconds


def _parameters(command: click.Command) -> list[click.Parameter]:
    below = command.commands.values() if isinstance(command, click.Group) else ()
    return [*command.params, *(parameter for each in below for parameter in _parameters(each))]


@pytest.mark.parametrize("program", [broker, ctl, bench], ids=["toymq", "toymqctl", "toymq-bench"])
def test_a_default_is_shown_as_a_duration_is_written(program: click.Command) -> None:
    """Found: the help said `[default: 14400.0]` instead of `4h`."""
    for each in _parameters(program):
        if isinstance(each.type, Duration):
            assert not isinstance(each.default, int | float), f"{each.opts}: {each.default!r}"


@pytest.mark.parametrize("text", ["soon", "5 weeks", "-1", "1_0s", "1.s", ".5", "nan", "", "11y", "4000d", "0.9ms"])
def test_an_invalid_duration_is_named_with_a_remedy(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"invalid duration .*: write"):
        Duration(least_ms=1).convert(text, None, None)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (BadArgument("the reason"), "tool: the reason\n"),
        (ConfigError("an option"), "tool: an option\n"),
        (FileNotFoundError(2, "No such file", "x.json"), "tool: x.json: No such file\n"),
        (OSError("no text of the system's"), "tool: no text of the system's\n"),
    ],
)
@pytest.mark.parametrize("code", [1, 2])
def test_an_expected_error_is_one_line_and_an_exit_code(error: Exception, line: str, code: int) -> None:
    @click.group("tool", cls=OneLineErrors, failure_code=code)
    def tool() -> None:
        pass

    @tool.command()
    def fail() -> None:
        raise error

    result = CliRunner().invoke(tool, ["fail"])
    assert (result.stderr, result.exit_code) == (line, code)
