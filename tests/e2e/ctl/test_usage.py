"""Wrong usage, and help."""

import click
import pytest
from click.testing import CliRunner

from tests.support.ctl import ok, refused
from toymqctl.cli import main as toymqctl


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--bad"], "toymqctl: No such option '--bad' (see `toymqctl --help`)"),
        (["--url"], "toymqctl: Option '--url' requires an argument (see `toymqctl --help`)"),
        (["--token-file", "/not/there", "ping"], "File '/not/there' does not exist (see `toymqctl --help`)"),
        (["pubb"], "No such command 'pubb': did you mean `toymqctl pub`? (see `toymqctl --help`)"),
        (["dlq", "lits"], "No such command 'lits': did you mean `toymqctl dlq list`? (see `toymqctl dlq --help`)"),
        (["--url", "http://a", "ping"], "toymqctl: a broker's URL is toymq://[token@]host[:port], or toymqs:// for TLS, not http://"),
        (["token", "create", "a", "--expires", "90"], "(see `toymqctl token create --help`)"),
        (["--tls-key", "key.pem", "ping"], "--url toymqs://host:port (see `toymqctl --help`)"),
        (["pub"], "Missing argument 'TOPIC' (see `toymqctl pub --help`)"),
        (["dlq", "show", "a"], "Missing argument 'ID'. `toymqctl dlq list TOPIC` lists the ids (see `toymqctl dlq show"),
        (["dlq", "discard", "a"], "Missing argument 'IDS'. `toymqctl dlq list TOPIC` lists the ids (see `toymqctl dlq"),
    ],
)
def test_wrong_usage_is_one_line(arguments: list[str], text: str) -> None:
    refused(CliRunner().invoke(toymqctl, arguments), 2, text)


@pytest.mark.parametrize("arguments", [[], ["dlq"]])
def test_no_command_at_all_shows_which_there_are(arguments: list[str]) -> None:
    result = CliRunner().invoke(toymqctl, arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("Usage: toymqctl")


def test_no_line_of_a_list_of_commands_is_cut() -> None:
    for names in ([], *([name] for name, command in toymqctl.commands.items() if isinstance(command, click.Group))):
        shown = ok(CliRunner().invoke(toymqctl, [*names, "--help"], terminal_width=80))
        cut = [line for line in shown.splitlines() if line.endswith("...") and not line.startswith("Usage: ")]
        assert cut == [], names


def test_every_command_says_what_it_does() -> None:
    for name, command in toymqctl.commands.items():
        assert (command.help or "").strip(), f"{name} has no help"
        assert ok(CliRunner().invoke(toymqctl, [name, "--help"])).startswith("Usage: ")
