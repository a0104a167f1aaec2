"""``python -m tests.model``: what it prints and how it ends."""

import pytest
from click.testing import CliRunner

from tests.model.__main__ import main, shown
from tests.model.bounds import FAR, LONG, SHORT


def test_a_search_that_loses_nothing_ends_with_0() -> None:
    result = CliRunner().invoke(main, ["--records", "1", "--epochs", "2", "--faults", "1"])
    assert result.exit_code == 0
    assert "--nodes 2 --records 1 --epochs 2 --faults 1" in result.stdout
    assert result.stdout.endswith("nothing is lost\n")


@pytest.mark.parametrize(
    ("rule", "line"), [("ack_local", "A syncs its log"), ("rename_by_name", "the leader does rename p to q")]
)
def test_a_rule_left_out_ends_with_1_and_its_trace(rule: str, line: str) -> None:
    result = CliRunner().invoke(main, ["--mutant", rule])
    assert result.exit_code == 1
    assert f"    {line}" in result.stdout
    assert result.stdout.startswith(f"{rule}: --")


def test_a_search_that_reached_its_limit_says_so() -> None:
    result = CliRunner().invoke(main, ["--files", "--operations", "1", "--limit", "100"])
    assert result.exit_code == 0
    assert "nothing is lost so far: the limit was reached" in result.stdout


def test_walks_are_counted() -> None:
    result = CliRunner().invoke(main, ["--walks", "2", "--nodes", "3", "--records", "4", "--epochs", "5"])
    assert result.exit_code == 0
    assert ": 2 walks, " in result.stdout


def test_the_options_shown_are_the_options_to_type() -> None:
    for bounds in (*SHORT, *LONG, FAR):
        options = ["--files"] if "--breaks" in shown(bounds) else []
        result = CliRunner().invoke(main, [*options, *shown(bounds).split(), "--limit", "1"])
        assert result.stdout.startswith(shown(bounds)), result.output
