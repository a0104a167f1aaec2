"""``toymq help``: pages of the documentation, and help of commands."""

import pytest
from click.testing import CliRunner

from tests.support.broker_process import ROOT
from toymq_py.cli.help import for_a_terminal, pages, title_of
from toymq_py.cli.main import main


def call(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["help", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_every_page_is_listed_with_its_title() -> None:
    lines = call().splitlines()
    assert [line.split()[0] for line in lines] == sorted(path.stem for path in (ROOT / "docs").glob("*.md"))
    assert all(title_of(text) for text in pages().values()), "each page begins with a heading"
    assert any(line.split(maxsplit=1) == ["work-queues", title_of(pages()["work-queues"])] for line in lines)


def test_a_page_is_shown_without_the_targets_of_its_links() -> None:
    shown = call("alerts")
    assert shown.startswith("# Alerts that come to you\n")
    assert "](" not in shown
    assert call("Alerts.md") == shown
    assert for_a_terminal("see [a page](a.md#b) and ![a picture](b.png)") == "see a page and a picture"


def test_the_help_of_a_command_is_that_of_the_command() -> None:
    assert call("serve") == CliRunner().invoke(main, ["serve", "--help"]).stdout


def test_a_command_of_toymqctl_is_named() -> None:
    result = CliRunner().invoke(main, ["help", "pub"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "toymq: pub is a command of toymqctl: `toymqctl pub --help` has its help\n"


@pytest.mark.parametrize(("topic", "hint"), [("alertz", "did you mean alerts"), ("zzz", "`toymq help` lists the pages")])
def test_an_unknown_topic_is_one_line(topic: str, hint: str) -> None:
    result = CliRunner().invoke(main, ["help", topic])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert f"there is no page or command '{topic}'" in result.stderr
    assert hint in result.stderr
