"""``toymq bench`` runs toymq-bench."""

from typing import Any

import pytest
from click.testing import CliRunner

from toymq_bench.cli import main as program
from toymq_py.cli import bench as module
from toymq_py.cli.main import main


@pytest.mark.parametrize("arguments", [["--help"], ["pub", "--help"]])
def test_it_takes_what_the_program_takes(arguments: list[str]) -> None:
    ours = CliRunner().invoke(main, ["bench", *arguments])
    theirs = CliRunner().invoke(program, arguments, prog_name="toymq-bench")
    assert (ours.exit_code, ours.stdout) == (0, theirs.stdout.replace("Usage: toymq-bench", "Usage: toymq bench"))


def test_wrong_usage_is_one_line() -> None:
    result = CliRunner().invoke(main, ["bench", "pubb"])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "did you mean `toymq bench pub`?" in result.stderr


def test_an_extra_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(name: str) -> Any:
        raise ModuleNotFoundError("No module named 'hdrh'", name="hdrh")

    monkeypatch.setattr(module, "import_module", lacking)
    result = CliRunner().invoke(main, ["bench", "pub"])
    assert (result.exit_code, "bench needs hdrh: " in result.stderr, ".[bench]" in result.stderr) == (2, True, True)
