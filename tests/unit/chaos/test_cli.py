"""The options of ``toymq-chaos``, and the command line that it prints to repeat a run."""

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from toymq_chaos.cli import again, main, replay
from toymq_chaos.experiment import Options


def test_again_runs_the_same_plan() -> None:
    options = Options(seed=7, duration_s=12.345, out=Path("out"), publishers=3, consumers=5, rate=33.3, workers=3)
    program, command, *arguments = shlex.split(again(options))
    assert (program, command) == ("toymq-chaos", "replay")
    assert Options(**replay.make_context("replay", [*arguments, "--out", "out"]).params) == options


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--rate", "nan"], "'--rate': invalid rate nan: write a finite number"),
        (["--rate", "inf"], "'--rate': invalid rate inf: write a finite number"),
        (["--rate", "0.5"], "'--rate': 0.5 is not in the range x>=1"),
        (["--duration", "0"], "'--duration': invalid duration"),
        (["--duration", "0s"], "'--duration': invalid duration"),
    ],
    ids=" ".join,
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, arguments: list[str], complaint: str) -> None:
    result = CliRunner().invoke(main, ["run", *arguments, "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert not (tmp_path / "out").exists()
