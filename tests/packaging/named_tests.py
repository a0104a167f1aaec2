"""Tests named by a page of the documentation: each link leads to a test that exists and is part of the default run."""

import ast
import functools
import re

from tests.support.broker_process import ROOT

LINK = re.compile(r"\[`([\w./-]+\.py)::(?:(\w+)::)?(\w+)`\]\(\.\./([\w./-]+)\)")


@functools.cache
def collected(path: str) -> set[tuple[str, str]]:
    """Return (class or "", name) of each test that the default run collects from a file."""
    found = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        inside = node.body if isinstance(node, ast.ClassDef) else [node]
        owner = node.name if isinstance(node, ast.ClassDef) else ""
        functions = (each for each in inside if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
        run = (each for each in functions if "pytest.mark.torture" not in map(ast.unparse, each.decorator_list))
        found.update((owner, each.name) for each in run if each.name.startswith("test_"))
    return found


def check_cell(cell: str) -> None:
    """Check a cell of links, one a line. Raises: AssertionError."""
    for link in cell.split("<br>"):
        named = LINK.fullmatch(link)
        assert named, f"{link!r} is no linked test"
        path, owner, name, target = named.groups()
        assert path == target, "the link leads to the file of the test"
        assert (ROOT / path).exists(), path
        assert (owner or "", name) in collected(path), f"{path} has no test {name}"
