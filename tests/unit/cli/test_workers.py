"""``toymq workers``."""

from pathlib import Path

from click.testing import CliRunner

from toymq_py.cli.main import main


def test_it_shows_and_changes_the_number(tmp_path: Path) -> None:
    directory = str(tmp_path / "data")
    (tmp_path / "data/topics/orders").mkdir(parents=True)
    run = CliRunner().invoke
    assert run(main, ["workers", directory]).output == f"{directory}: 1 worker\n"
    assert run(main, ["workers", directory, "--set", "2"]).output == (
        f"{directory}: 2 workers, 1 topic moved; `toymq serve --workers 2` serves it\n"
    )
    assert run(main, ["workers", directory]).output == f"{directory}: 2 workers\n"
    assert run(main, ["workers", directory, "--set", "1"]).output == (
        f"{directory}: 1 worker, 1 topic moved; `toymq serve` serves it\n"
    )
    assert (tmp_path / "data/topics/orders").is_dir()


def test_a_directory_that_is_none(tmp_path: Path) -> None:
    ended = CliRunner().invoke(main, ["workers", str(tmp_path / "missing"), "--set", "2"])
    assert ended.exit_code == 2
    assert not (tmp_path / "missing").exists()
