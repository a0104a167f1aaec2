"""docs/configuration.md agrees with the options' schema."""

import re
import tomllib
from pathlib import Path

from tests.packaging.configuration_page import PAGE, with_table
from toymq_py.cli.options import look_into
from toymq_py.config.options import SUBSYSTEMS


def test_the_table_is_that_of_the_schema() -> None:
    page = PAGE.read_text()
    assert page == with_table(page), "the options have changed: run `make docs`"


def test_the_example_is_a_file_without_mistakes(tmp_path: Path) -> None:
    example = PAGE.read_text().partition("```toml\n")[2].partition("```")[0]
    assert len(tomllib.loads(example)) == 4, example
    file = tmp_path / "toymq.toml"
    file.write_text(example)
    values, problems = look_into(file.read_text(), str(file))
    assert problems == []
    assert values["visibility_ms"] == 120_000


def test_the_subsystems_of_the_log_are_named() -> None:
    (named,) = re.findall(r"others by subsystem: (.*?) \(the loggers", PAGE.read_text(), re.S)
    assert tuple(re.findall(r"`(\w+)`", named)) == SUBSYSTEMS


def test_a_limit_that_tells_nothing_is_not_a_value() -> None:
    """Found: the table had "0B to 4194304TiB"; "none" as code, and a default "off" beside "true or false", looked like
    values."""
    rows = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| `--")]
    found = {row[0].removeprefix("| "): row[2:4] for row in rows}
    assert found["`--min-free-bytes`"] == ["0B or more", "`256MiB`"]
    assert found["`--strict-recovery`"] == ["true or false", "`false`"]
    assert found["`--http`"][1] == "not set"
