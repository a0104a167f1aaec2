"""The imports of all files, read from their sources, for rules that the import linter cannot express.

Imports for type checkers and imports within functions count like any other."""

import ast
from collections.abc import Iterable, Iterator, Mapping

from tests.support.broker_process import ROOT

PACKAGES = {
    "toymq_py": "toymq_py",
    "toymq": "clients/toymq",
    "toymqctl": "clients/toymqctl",
    "toymq_bench": "clients/toymq_bench",
    "toymq_spark": "clients/toymq_spark",
    "pyspark_toymq": "clients/pyspark_toymq",
    "toymq_chaos": "chaos/toymq_chaos",
}
"""All that is released, and its place."""


def sources(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Return the text of every module, by its name."""
    found = {}
    for package in packages:
        root = (ROOT / PACKAGES[package]).parent
        for file in (root / package).rglob("*.py"):
            name = ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
            found[name] = file.read_text()
    return found


def imports(modules: Mapping[str, str]) -> dict[str, set[str]]:
    """Return for each module which of the others it imports. A package stands for its ``__init__.py``.

    Computed names (``import_module(f"…{name}")``) are not seen."""
    return {name: {*_imported(text, modules)} - {name} for name, text in modules.items()}


def _imported(text: str, modules: Mapping[str, str]) -> Iterator[str]:
    tree = ast.parse(text)
    calls = "import_module" in text
    for node in ast.walk(tree) if calls else _statements(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _nearest(alias.name, modules)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield from _nearest(f"{node.module}.{alias.name}", modules)
        elif isinstance(node, ast.Call) and (name := _loaded(node)) is not None:
            yield from _nearest(name, modules)


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield statements without their expressions: a walk over every name takes seconds."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        for node in getattr(tree, name, ()):
            yield node
            yield from _statements(node)


def _loaded(call: ast.Call) -> str | None:
    """Return the literal argument of an ``import_module`` call."""
    match call:
        case ast.Call(func=ast.Name(id="import_module") | ast.Attribute(attr="import_module"), args=[ast.Constant(str(name))]):
            return name
    return None


def _nearest(name: str, modules: Mapping[str, str]) -> Iterator[str]:
    """Yield the module of that name, or the one that contains it."""
    while name and name not in modules:
        name = name.rpartition(".")[0]
    if name:
        yield name


def circles(graph: Mapping[str, set[str]]) -> set[frozenset[str]]:
    """Return the strongly connected components with more than one module: each module in one imports all others indirectly."""
    reached = {module: _reached(module, graph) for module in graph}
    components = (frozenset(other for other in reached[module] if module in reached[other]) for module in graph)
    return {component for component in components if len(component) > 1}


def _reached(module: str, graph: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    following = [module]
    while following:
        fresh = graph[following.pop()] - found
        found |= fresh
        following += fresh
    return found
