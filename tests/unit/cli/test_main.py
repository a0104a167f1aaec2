"""The ``toymq`` group: its commands, and how an error is printed."""

import errno

import click
import pytest
from click.testing import CliRunner

from toymq_py.cli.main import COMMANDS, main
from toymq_py.errors import ConfigError, NoSuchTopic


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_what_it_does(command: str) -> None:
    result = CliRunner().invoke(main, [command, "--help"])
    assert (result.exit_code, result.stdout.startswith(f"Usage: toymq {command} [OPTIONS]")) == (0, True)
    assert f"  {command} " in CliRunner().invoke(main, ["--help"]).stdout


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ConfigError("invalid size 'x'"), 2, "toymq: invalid size 'x'\n"),
        (NoSuchTopic("orders"), 1, "toymq: NO_SUCH_TOPIC: orders\n"),
        (OSError(errno.EACCES, "Permission denied", "/data"), 2, "toymq: /data: Permission denied\n"),
    ],
    ids=["local", "of the broker", "of the system"],
)
def test_an_error_is_one_line_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, line: str
) -> None:
    @click.command()
    def failing() -> None:
        raise error

    monkeypatch.setattr("toymq_py.cli.verify.verify", failing)
    result = CliRunner().invoke(main, ["verify"])
    assert (result.exit_code, result.stderr) == (code, line)
