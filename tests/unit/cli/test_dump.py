"""``toymq dump``: which records it prints. ``tests/e2e/test_command_lines.py`` has a whole directory dumped."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from toymq_py.cli.dump import dump
from toymq_py.cli.main import main
from toymq_py.storage.fs import RealFileSystem
from toymq_py.storage.workers_file import divide


@pytest.mark.parametrize("option", ["--from", "--max"])
def test_a_negative_number_is_refused(tmp_path: Path, option: str) -> None:
    (tmp_path / "topics" / "orders").mkdir(parents=True)
    result = CliRunner().invoke(dump, [str(tmp_path), "orders", option, "-1"])
    assert (result.exit_code, f"Invalid value for '{option}': -1 is not in the range x>=0" in result.stderr) == (2, True)


def test_a_topic_of_a_divided_directory_is_in_one_of_its_parts(tmp_path: Path) -> None:
    """Found: `dump` said that there is no such topic, where other commands say which worker's directory to name."""
    divide(RealFileSystem(), str(tmp_path), 2)
    result = CliRunner().invoke(main, ["dump", str(tmp_path), "orders"])
    assert (result.exit_code, f"such as {tmp_path}/workers/0" in result.stderr) == (2, True), result.output


def test_a_partitioned_topic_is_dumped_by_its_partitions(tmp_path: Path) -> None:
    for name in ("orders#0", "orders#1"):
        (tmp_path / "topics" / name).mkdir(parents=True)
    result = CliRunner().invoke(main, ["dump", str(tmp_path), "orders"])
    said = f"toymq: there is no topic orders in {tmp_path}: it is partitioned, name one, such as orders#1"
    assert result.stderr.splitlines() == [said]
