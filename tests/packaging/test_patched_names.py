"""Names that tests replace by monkeypatching exist. A torture test runs rarely, and would show a missing one late."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType

import pytest

from tests.support.broker_process import ROOT

RARE = ("torture", "spark_slow")
MISSING = object()


def rare_tests() -> list[str]:
    """Return the modules with a test that `make test` leaves out."""
    files = (path for path in (ROOT / "tests").rglob("test_*.py") if any(f"mark.{mark}" in path.read_text() for mark in RARE))
    return sorted(".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files)


def replaced(tree: ast.AST, module: ModuleType) -> Iterator[tuple[int, str, object]]:
    """Yield (line, name, value) of what is replaced: by `setattr("module.name", …)`, and by `setattr(owner, "name", …)` where
    the owner is one of the module's names, or below one."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setattr"):
            continue
        match node.args:
            case [ast.Constant(value=str(path)), _]:
                owner, _, name = path.rpartition(".")
                yield node.lineno, path, getattr(resolve_name(owner), name, MISSING)
            case [(ast.Name() | ast.Attribute()) as owner, ast.Constant(value=str(name)), _]:
                first, *below = ast.unparse(owner).split(".")
                found = getattr(module, first, MISSING)
                for part in below:
                    found = getattr(found, part, MISSING)
                if found is not MISSING:
                    yield node.lineno, f"{ast.unparse(owner)}.{name}", getattr(found, name, MISSING)


def test_rare_tests_are_found() -> None:
    assert len(rare_tests()) > 50


@pytest.mark.parametrize("name", rare_tests())
def test_what_a_rare_test_replaces_is_there(name: str) -> None:
    module = importlib.import_module(name)
    found = list(replaced(ast.parse(Path(str(module.__file__)).read_text()), module))
    assert not [(line, what) for line, what, it in found if it is MISSING]


def test_a_name_that_is_gone_is_found() -> None:
    source = 'p.setattr(ast, "gone", 1); p.setattr("ast.gone_too", 1); p.setattr(ast, "parse", 1); p.setattr(own, "x", 1)'
    found = list(replaced(ast.parse(source), importlib.import_module(__name__)))
    assert [what for _, what, it in found if it is MISSING] == ["ast.gone", "ast.gone_too"]
    assert len(found) == 3
