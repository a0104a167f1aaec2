"""``toymq dump``: which records it prints. ``tests/e2e/test_command_lines.py`` has a whole directory dumped."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from toymq_py.cli.dump import dump


@pytest.mark.parametrize("option", ["--from", "--max"])
def test_a_negative_number_is_refused(tmp_path: Path, option: str) -> None:
    (tmp_path / "topics" / "orders").mkdir(parents=True)
    result = CliRunner().invoke(dump, [str(tmp_path), "orders", option, "-1"])
    assert (result.exit_code, f"Invalid value for '{option}': -1 is not in the range x>=0" in result.stderr) == (2, True)
