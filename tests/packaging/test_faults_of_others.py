"""docs/faults-of-others.md tells the truth: every test it names exists and is run."""

import ast
import functools
import re

import pytest

from tests.support.broker_process import ROOT

PAGE = (ROOT / "docs" / "faults-of-others.md").read_text()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if re.match(r"\| (?!broker)", line)]
LINK = re.compile(r"\[`([\w./-]+\.py)::(?:(\w+)::)?(\w+)`\]\(\.\./([\w./-]+)\)")


@functools.cache
def collected(path: str) -> set[tuple[str, str]]:
    """(class or "", name) of what the default run collects from a file."""
    found = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        owner = node.name if isinstance(node, ast.ClassDef) else ""
        functions = (each for each in inside if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
        run = (each for each in functions if "pytest.mark.torture" not in map(ast.unparse, each.decorator_list))
        found.update((owner, each.name) for each in run if each.name.startswith("test_"))
    return found


def test_the_page_has_its_rows() -> None:
    assert len(ROWS) > 60, "the table is read as a table"
    assert [row for row in ROWS if len(row) != 3 or not all(row)] == []
    assert len({(broker, what) for broker, what, _ in ROWS}) == len(ROWS), "no failure is listed twice"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}: {row[1]}")
def test_a_row_names_tests_that_exist(row: list[str]) -> None:
    for link in row[2].split("<br>"):
        named = LINK.fullmatch(link)
        assert named, f"{link!r} is no linked test"
        path, owner, name, target = named.groups()
        assert path == target, "the link leads to the file of the test"
        assert (ROOT / path).exists(), path
        assert (owner or "", name) in collected(path), f"{path} has no test {name}"
