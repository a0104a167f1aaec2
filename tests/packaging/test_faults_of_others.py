"""docs/faults-of-others.md tells the truth: every test it names exists, and what is not built yet is said so in the README."""

import ast
import functools
import re

import pytest

from tests.support.broker_process import ROOT

PAGE = (ROOT / "docs" / "faults-of-others.md").read_text()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if re.match(r"\| (?!whose)", line)]
LINK = re.compile(r"\[`([\w./-]+\.py)::(?:(\w+)::)?(\w+)`\]\(\.\./([\w./-]+)\)")
LATER = re.compile(r"with ([\w ]+), not built yet")


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
    assert len({(whose, what) for whose, what, _ in ROWS}) == len(ROWS), "no failure is listed twice"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}: {row[1]}")
def test_a_row_names_tests_that_exist_or_what_is_not_built_yet(row: list[str]) -> None:
    shown = row[2]
    if LATER.fullmatch(shown):
        return
    for link in shown.split("<br>"):
        named = LINK.fullmatch(link)
        assert named, f"{link!r} is neither a linked test nor 'with <feature>, not built yet'"
        path, owner, name, target = named.groups()
        assert path == target, "the link leads to the file of the test"
        assert (ROOT / path).exists(), path
        assert (owner or "", name) in collected(path), f"{path} has no test {name}"


def test_what_is_not_built_yet_is_said_in_the_readme() -> None:
    """When a feature comes and leaves the README's list, its rows here need their tests."""
    listed = re.findall(r"^- Not yet: (.*?)(?=^- )", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    not_yet = " ".join(listed)
    features = {found[1] for row in ROWS if (found := LATER.fullmatch(row[2]))}
    assert {feature for feature in features if feature not in " ".join(not_yet.split())} == set()
