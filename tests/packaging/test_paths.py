"""docs/paths.md names existing functions, and no list is longer than a newcomer can follow."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STEP = re.compile(r"^\| `([\w/]+\.py):(\w+)` \|", re.M)
FILES_MAX = 12
"""Of a list, the codec left out (issue "A house that a stranger can live in")."""


def lists() -> dict[str, list[tuple[str, str]]]:
    parts = (ROOT / "docs" / "paths.md").read_text().split("\n## ")[1:]
    return {part.partition("\n")[0]: STEP.findall(part) for part in parts}


@pytest.mark.parametrize("name", lists())
def test_each_step_is_a_function(name: str) -> None:
    steps = lists()[name]
    assert len(steps) > 8
    for file, function in steps:
        tree = ast.parse((ROOT / "toymq_py" / file).read_text())
        found = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert function in found, f"{file} has no {function}"


@pytest.mark.parametrize("name", lists())
def test_a_list_goes_through_few_files(name: str) -> None:
    assert len({file for file, _ in lists()[name] if not file.startswith("protocol/")}) <= FILES_MAX
