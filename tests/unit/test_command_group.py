"""Wrong usage of every command line: an error of one line, exit code 2, and a suggestion."""

import subprocess
import sys
from importlib import import_module

import click
import pytest
from click.testing import CliRunner

from tests.support.broker_process import environment
from toymq_py.command_group import CommandGroup


@click.group("tool", cls=CommandGroup)
@click.option("--url")
def tool(url: str | None) -> None:
    pass


@tool.command()
@click.argument("shell", type=click.Choice(["bash", "zsh"]))
@click.option("--count", type=int)
@click.option("--most", type=click.IntRange(1, 64))
@click.option("--least", type=click.IntRange(0))
def forget(shell: str, count: int | None, most: int | None, least: int | None) -> None:
    pass


@tool.group()
@click.option("--group")
def letters(group: str | None) -> None:
    pass


@letters.command()
def redrive() -> None:
    pass


@tool.command()
@click.argument("settings", nargs=-1, metavar="[NAME=VALUE]...")
@click.option("--partitions")
def create(settings: tuple[str, ...], partitions: str | None) -> None:
    pass


@tool.command()
def verify() -> None:
    pass


@tool.command()
@click.option("--data-dir")
@click.option("--tier")
@click.option("--token-file")
def serve(data_dir: str, tier: str, token_file: str) -> None:
    pass


@tool.command()
def sub() -> None:
    raise click.UsageError("--a excludes --b")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["forget"], "Missing argument '{bash|zsh}'. Choose from: bash, zsh (see `tool forget --help`)"),
        (["forget", "bash", "--count", "x"], "Invalid value for '--count': 'x' is not a valid integer (see `tool forget -"
         "-help`)"),
        (["forget", "bash", "--most", "x"], "Invalid value for '--most': 'x' is not a whole number from 1 to 64 (see `tool "
         "forget --help`)"),
        (["forget", "bash", "--least", "x"], "Invalid value for '--least': 'x' is not a whole number from 0 (see `tool forget "
         "--help`)"),
        (["get", "x"], "No such command 'get' (see `tool --help`)"),  # `forget` would delete
        (["verfy"], "No such command 'verfy': did you mean `tool verify`? (see `tool --help`)"),
        (["subscribe"], "No such command 'subscribe': did you mean `tool sub`? (see `tool --help`)"),
        (["redrive"], "No such command 'redrive': did you mean `tool letters redrive`? (see `tool --help`)"),
        (["letters", "redriv"], "No such command 'redriv': did you mean `tool letters redrive`? (see `tool letters --help`)"),
        (
            ["letters", "redrive", "--group", "b"],
            "--group goes before the command: `tool letters --group … redrive` (see `tool letters redrive --help`)",
        ),
        (
            ["letters", "redrive", "--url", "x"],
            "--url goes before the command: `tool --url … letters redrive` (see `tool letters redrive --help`)",
        ),
        (["create", "--max-lag", "1"], "there is no option --max-lag: a setting is `max_lag=…` (see `tool create --help`)"),
        (["create", "--partition"], "No such option '--partition'. Did you mean '--partitions'? (see `tool create --help`)"),
        (["verify", "--url", "x"], "--url goes before the command: `tool --url … verify` (see `tool verify --help`)"),
        (["verify", "--nothing"], "No such option '--nothing' (see `tool verify --help`)"),
        (["--ulr", "x", "verify"], "No such option '--ulr'. Did you mean '--url'? (see `tool --help`)"),
        (["serve", "--datadir", "x"], "No such option '--datadir'. Did you mean '--data-dir'? (see `tool serve --help`)"),
        (["serve", "--token", "x"], "No such option '--token'. Did you mean '--token-file'? (see `tool serve --help`)"),
        (["sub"], "--a excludes --b (see `tool sub --help`)"),
    ],
)
def test_wrong_usage_is_one_line(arguments: list[str], line: str) -> None:
    result = CliRunner().invoke(tool, arguments, prog_name="tool")
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"tool: {line}\n")


@pytest.mark.parametrize("arguments", [[], ["letters"]])
def test_a_group_alone_shows_its_commands(arguments: list[str]) -> None:
    result = CliRunner().invoke(tool, arguments)
    assert result.exit_code == 2
    assert "Commands:" in result.stderr


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("toymq_py.cli.main", "toymq"), ("toymqctl.cli", "toymqctl"), ("toymq_bench.cli", "toymq-bench"),
        ("toymq_chaos.cli", "toymq-chaos"),
    ],
)  # fmt: skip
def test_the_command_lines_say_it_so(module: str, name: str) -> None:
    result = CliRunner().invoke(import_module(module).main, ["nonsense"], prog_name=name)
    assert (result.exit_code, result.stderr) == (2, f"{name}: No such command 'nonsense' (see `{name} --help`)\n")


@pytest.mark.parametrize("module", ["toymq_py.cli.main", "toymqctl.cli", "toymq_bench.cli", "toymq_chaos.cli"])
def test_no_list_of_commands_is_cut(module: str) -> None:
    """Click cuts the description of a command at the terminal's width."""
    main = import_module(module).main
    context = click.Context(main)
    groups = [name for name in main.list_commands(context) if isinstance(main.get_command(context, name), click.Group)]
    for words in ([], *([name] for name in groups)):
        shown = CliRunner().invoke(main, [*words, "--help"], terminal_width=80).stdout
        assert [line for line in shown.splitlines()[1:] if line.endswith("...")] == [], words


@pytest.mark.parametrize(
    ("module", "words", "line"),
    [
        ("toymq_py.cli", ["pub", "orders"], "No such command 'pub': did you mean `toymqctl pub`?"),
        ("toymqctl.cli", ["serve"], "No such command 'serve': did you mean `toymq serve`?"),
        ("toymqctl.cli", ["list"], "No such command 'list': did you mean `toymqctl topics`?"),
        ("toymqctl.cli", ["consume", "orders"], "No such command 'consume': did you mean `toymqctl sub`?"),
        ("toymqctl.cli", ["get", "orders"], "No such command 'get': did you mean `toymqctl pull`?"),
        ("toymqctl.cli", ["queues"], "No such command 'queues': `toymqctl topics` lists queues as topics, the page #/amqp of"),
        ("toymqctl.cli", ["list_queues"], "No such command 'list_queues': `toymqctl topics` lists"),
        ("toymqctl.cli", ["exchanges"], "No such command 'exchanges': the page #/amqp of the dashboard (--http) shows them"),
        ("toymq_py.cli", ["serve", "--port", "6789"], "No such option '--port': write `--listen HOST:PORT`"),
        ("toymqctl.cli", ["tail", "mails", "--count", "1"], "No such option '--count': write `--max N`"),
        ("toymqctl.cli", ["sub", "mails", "--count", "1"], "No such option '--count': write `--max N`"),
        ("toymqctl.cli", ["pull", "jobs", "w", "--count", "1"], "No such option '--count': write `--max N`"),
        ("toymqctl.cli", ["topics", "--count", "1"], "No such option '--count'"),
        ("toymqctl.cli", ["create", "t", "--group", "a"], "there is no option --group: a setting is `group=…`"),
        ("toymqctl.cli", ["config", "t", "--max-attempts", "3"], "there is no option --max-attempts: a setting is `max_att"),
        ("toymqctl.cli", ["cluster", "init", "--group", "b"], "--group goes before the command: `toymqctl cluster --group … "),
    ],
)
def test_what_another_program_or_another_name_has_is_named(module: str, words: list[str], line: str) -> None:
    """Found by a trial: the error did not name the other program or command that was meant."""
    name = {"toymq_py.cli": "toymq", "toymqctl.cli": "toymqctl"}[module]
    result = CliRunner().invoke(import_module(module).main, words, prog_name=name)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"{name}: {line}"), result.stderr


def test_each_program_knows_the_commands_of_the_other() -> None:
    toymq, toymqctl = import_module("toymq_py.cli.main"), import_module("toymqctl.cli")
    ours, others = set(toymq.COMMANDS), set(toymqctl.COMMANDS)
    assert others - ours - set(toymq.OF_TOYMQCTL) == set(), "enter them in OF_TOYMQCTL"
    assert set(toymqctl.OF_TOYMQ) == ours - others, "change OF_TOYMQ"


@pytest.mark.parametrize("module", ["toymq_py.cli", "toymqctl.cli"])
def test_every_command_is_where_it_is_said_to_be(module: str) -> None:
    main = import_module(module).main
    with click.Context(main) as ctx:
        assert [main.get_command(ctx, name).name for name in main.list_commands(ctx)] == list(main.list_commands(ctx))


def test_a_command_loads_none_of_the_others() -> None:
    program = (
        "import sys, toymqctl.cli as cli; cli.main.get_command(None, 'pub');"
        "print([name for name in cli.COMMANDS if f'toymqctl.{name}' in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout == "['pub']\n"
