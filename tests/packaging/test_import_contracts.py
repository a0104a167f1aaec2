"""Every import contract in pyproject.toml can fail: one import that breaks it, and the linter names it.

The cases come from the contracts themselves, so a new one is tried without a change here.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "toymq_py": "toymq_py",
    "toymq_client": "clients/toymq_client",
    "toymqctl": "clients/toymqctl",
    "toymq_bench": "clients/toymq_bench",
    "toymq_spark": "clients/toymq_spark",
    "pyspark_toymq": "clients/pyspark_toymq",
    "toymq_chaos": "chaos/toymq_chaos",
}
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
CONTRACTS: list[dict[str, Any]] = SETTINGS["contracts"]
LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"


@dataclass(frozen=True, slots=True)
class Tree:
    """A copy of the packages that may be spoilt."""

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
        """Also true of a third-party or standard module: those need no file."""
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
            source.write(f"\nimport {imported}\n")

    def lint(self, *contracts: str) -> subprocess.CompletedProcess[str]:
        only = chain.from_iterable(("--contract", name) for name in contracts)
        path = os.pathsep.join((str(self.root), str(self.root / "clients"), str(self.root / "chaos")))
        return subprocess.run(
            [sys.executable, "-c", LINT, "--no-cache", "--no-logo", *only],
            cwd=self.root,
            env=os.environ | {"PYTHONPATH": path, "COLUMNS": "200"},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree.copy_to(tmp_path)


def within(module: str, packages: list[str]) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


def layers_of(contract: dict[str, Any]) -> list[list[str]]:
    """Full module names, highest layer first."""
    container = contract["containers"][0]
    return [[f"{container}.{name.strip(' ()')}" for name in layer.split("|")] for layer in contract["layers"]]


def imports_that_break(contract: dict[str, Any], tree: Tree) -> Iterator[tuple[str, str]]:
    """(importer, imported), each of which the contract forbids and the tree has both ends of."""
    match contract["type"]:
        case "layers":
            present = [[module for module in layer if tree.has(module)] for layer in layers_of(contract)]
            for number, layer in enumerate(reversed(present)):
                higher = chain.from_iterable(present[: len(present) - 1 - number])
                yield from ((low, high) for high in higher for low in layer)
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


def test_the_tree_keeps_all_of_them(tree: Tree) -> None:
    done = tree.lint()
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(CONTRACTS)} kept, 0 broken" in done.stdout


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract["id"])
def test_one_import_breaks_it(contract: dict[str, Any], tree: Tree) -> None:
    case = next(imports_that_break(contract, tree), None)
    assert case is not None, f"{contract['name']}: nothing that it speaks of is in the tree"
    tree.add_import(*case)
    done = tree.lint(contract["id"])
    assert f"{contract['name']} BROKEN" in done.stdout, f"{case} was let through:\n{done.stdout}{done.stderr}"
    assert done.returncode == 1


@pytest.mark.parametrize(
    "contract", [one for one in CONTRACTS if one.get("exhaustive")], ids=lambda contract: contract["id"]
)
def test_a_module_without_a_layer_breaks_it(contract: dict[str, Any], tree: Tree) -> None:
    package = tree.file_of(contract["containers"][0])
    assert package is not None
    package.with_name("utils.py").touch()
    done = tree.lint(contract["id"])
    assert f"{contract['name']} BROKEN" in done.stdout
    assert "utils" in done.stdout


def test_every_root_package_is_copied_and_shipped() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    shipped = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert sorted(SETTINGS["root_packages"]) == sorted(PACKAGES)
    assert sorted(shipped) == sorted(PACKAGES.values())
