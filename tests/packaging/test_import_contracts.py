"""Every import contract in pyproject.toml can fail: for one import that breaks it, the linter reports it.

The cases come from the contracts themselves, so a new contract is tried without a change here. All are broken in one copy of
the sources, with imports for type checkers only: a run of the linter takes a second."""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.packaging.imports import PACKAGES, imports, sources

ROOT = Path(__file__).parents[2]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
CONTRACTS: list[dict[str, Any]] = SETTINGS["contracts"]
EXHAUSTIVE = [contract for contract in CONTRACTS if contract.get("exhaustive")]
LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"


@dataclass(frozen=True, slots=True)
class Tree:
    """A copy of the packages that a test may break."""

    root: Path

    @classmethod
    def copy_to(cls, root: Path) -> "Tree":
        shutil.copy(ROOT / "pyproject.toml", root)
        for place in PACKAGES.values():
            shutil.copytree(ROOT / place, root / place, ignore=shutil.ignore_patterns("__pycache__"))
        return cls(root)

    def file_of(self, module: str) -> Path | None:
        top, _, rest = module.partition(".")
        path = self.root.joinpath(PACKAGES[top], *filter(None, rest.split(".")))
        return next((file for file in (path / "__init__.py", path.with_suffix(".py")) if file.exists()), None)

    def has(self, module: str) -> bool:
        """Return whether a module exists; also True for third-party and standard modules, which need no file."""
        return module.split(".")[0] not in PACKAGES or self.file_of(module) is not None

    def modules(self) -> Iterator[str]:
        for top, place in PACKAGES.items():
            for file in sorted((self.root / place).rglob("*.py")):
                names = file.relative_to(self.root / place).with_suffix("").parts
                yield ".".join((top, *names)).removesuffix(".__init__")

    def add_import(self, importer: str, imported: str) -> None:
        file = self.file_of(importer)
        assert file is not None, f"{importer} is not there"
        with file.open("a") as source:
            source.write(f"\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import {imported}\n")

    def lint(self) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join((str(self.root), str(self.root / "clients"), str(self.root / "chaos")))
        return subprocess.run(
            [sys.executable, "-c", LINT, "--no-cache", "--no-logo"],
            cwd=self.root,
            env=os.environ | {"PYTHONPATH": path, "COLUMNS": "200"},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    """Return an unchanged copy, to be read only."""
    return Tree.copy_to(tmp_path_factory.mktemp("tree"))


def parent(module: str) -> str:
    return module.rpartition(".")[0]


def within(module: str, packages: list[str]) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


def layers_of(contract: dict[str, Any]) -> list[list[str]]:
    """Return full module names, highest layer first."""
    container = contract["containers"][0]
    return [[f"{container}.{name.strip(' ()')}" for name in layer.split("|")] for layer in contract["layers"]]


def imports_that_break(contract: dict[str, Any], tree: Tree) -> Iterator[tuple[str, str]]:
    """Yield (importer, imported) pairs that the contract forbids and whose modules both exist."""
    match contract["type"]:
        case "layers":
            present = [[module for module in layer if tree.has(module)] for layer in layers_of(contract)]
            for number, layer in enumerate(reversed(present)):
                higher = chain.from_iterable(present[: len(present) - 1 - number])
                yield from ((low, high) for high in higher for low in layer)
        case "acyclic_siblings":
            for package in reversed(contract["ancestors"]):
                graph = imports(sources([package]))
                edges = ((high, low) for high in sorted(graph) for low in sorted(graph[high]))
                yield from ((low, high) for high, low in edges if {parent(high), parent(low)} == {package})
        case "protected":
            allowed = contract["allowed_importers"] + contract["protected_modules"]
            for imported in filter(tree.has, contract["protected_modules"]):
                yield from ((module, imported) for module in tree.modules() if not within(module, allowed))
        case "forbidden":
            known = [tuple(rule.split(" -> ")) for rule in contract.get("ignore_imports", [])]
            for importer in filter(tree.has, contract["source_modules"]):
                for imported in filter(tree.has, contract["forbidden_modules"]):
                    if importer != imported and not any(
                        fnmatchcase(importer, left) and fnmatchcase(imported, right) for left, right in known
                    ):
                        yield importer, imported
        case other:
            raise AssertionError(f"say here how to break a contract of type {other!r}")


def sections(said: str) -> dict[str, str]:
    """Return the linter's report of each broken contract, by its name."""
    lines = said.partition("Broken contracts\n")[2].splitlines()
    titles = [number for number, line in enumerate(lines[:-1]) if line and set(lines[number + 1]) == {"-"}]
    return {lines[begin]: "\n".join(lines[begin:end]) for begin, end in pairwise([*titles, len(lines)])}


def test_the_tree_keeps_all_of_them(tree: Tree) -> None:
    done = tree.lint()
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(CONTRACTS)} kept, 0 broken" in done.stdout


@pytest.fixture(scope="module")
def cases(tree: Tree) -> dict[str, tuple[str, str] | None]:
    """Return an import that breaks each contract, by the contract's id."""
    return {contract["id"]: next(imports_that_break(contract, tree), None) for contract in CONTRACTS}


@pytest.fixture(scope="module")
def said_of_imports(cases: dict[str, tuple[str, str] | None], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    tree = Tree.copy_to(tmp_path_factory.mktemp("broken"))
    for case in filter(None, cases.values()):
        tree.add_import(*case)
    return sections(tree.lint().stdout)


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract["id"])
def test_one_import_breaks_it(
    contract: dict[str, Any], cases: dict[str, tuple[str, str] | None], said_of_imports: dict[str, str]
) -> None:
    case = cases[contract["id"]]
    assert case is not None, f"{contract['name']}: nothing that it speaks of is in the tree"
    importer, imported = case
    said = said_of_imports.get(contract["name"], "nothing: it was kept")
    circle = contract["type"] == "acyclic_siblings"  # of a circle, the linter names the import that is best removed
    named = f"No cycles are allowed in {parent(importer)}." if circle else f"{importer} -> {imported} (l."
    assert named in said, f"{importer} -> {imported} was let through: {said}"


@pytest.fixture(scope="module")
def said_of_modules(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    tree = Tree.copy_to(tmp_path_factory.mktemp("utils"))
    for contract in EXHAUSTIVE:
        package = tree.file_of(contract["containers"][0])
        assert package is not None
        package.with_name("utils.py").touch()
    return sections(tree.lint().stdout)


@pytest.mark.parametrize("contract", EXHAUSTIVE, ids=lambda contract: contract["id"])
def test_a_module_without_a_layer_breaks_it(contract: dict[str, Any], said_of_modules: dict[str, str]) -> None:
    assert f"- {contract['containers'][0]}.utils\n" in said_of_modules.get(contract["name"], "nothing: it was kept")


def test_every_root_package_is_copied_and_shipped() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    shipped = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert sorted(SETTINGS["root_packages"]) == sorted(PACKAGES)
    assert sorted(shipped) == sorted(PACKAGES.values())
