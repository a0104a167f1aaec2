"""No file imports itself through others: a circle of files has to be read whole before any of them is understood.

``ALLOWED`` lists the remaining circles, and can only shrink: a new or a larger circle fails, and a module that has left a
circle must be removed from the list."""

import pytest

from tests.packaging.imports import PACKAGES, circles, imports, sources

ALLOWED: dict[str, str] = {}
"""By what they are about."""


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    return imports(sources())


def test_there_is_no_circle_but_those_that_are_allowed(graph: dict[str, set[str]]) -> None:
    found = circles(graph)
    allowed = {about: frozenset(modules.split()) for about, modules in ALLOWED.items()}
    new = [sorted(circle) for circle in found if not any(circle <= known for known in allowed.values())]
    assert not new, "a circle of files is new, or grew: give the lower one what it needs as an argument, or let it return it"
    left = {about: sorted(known.difference(*found)) for about, known in allowed.items() if known not in found}
    assert not left, "ALLOWED names files that are not in this circle any more (none named: it fell into several)"


def test_every_package_is_read(graph: dict[str, set[str]]) -> None:
    assert {module.partition(".")[0] for module in graph} == set(PACKAGES)
    assert "toymq_py.errors" in graph["toymqctl.broker"]


@pytest.mark.parametrize(
    "back",
    [
        "import p.a",
        "import p.a as other",
        "from p import a",
        "from p.a import name",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.a import name",
        "def later():\n    from p.a import name",
        "import importlib\nimportlib.import_module('p.a')",
    ],
)
def test_a_circle_is_found_by_any_import_that_closes_it(back: str) -> None:
    modules = {"p": "", "p.a": "from p import b", "p.b": "import p.c", "p.c": back, "p.d": "import p.a, p.c"}
    assert circles(imports(modules)) == {frozenset({"p.a", "p.b", "p.c"})}


def test_a_name_of_a_package_is_taken_from_its_own_file() -> None:
    modules = {"p": "from p.a import name", "p.a": "from p import name", "p.b": "from p import a"}
    assert circles(imports(modules)) == {frozenset({"p", "p.a"})}


def test_what_only_goes_down_is_no_circle() -> None:
    modules = {"p": "from p.a import name", "p.a": "import p.b", "p.b": "import os", "p.c": "import p.a, p.b"}
    assert circles(imports(modules)) == set()
