"""What users may import, pinned: a name that appears or goes is a decision, not an accident."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(
    file.parent for top in ("toymq_py", "clients") for file in (ROOT / top).rglob("__init__.py")
)

PUBLIC = {
    "toymq_py": ["__version__"],
}


@pytest.mark.parametrize("package", PUBLIC)
def test_the_public_names_are_these(package: str) -> None:
    module = importlib.import_module(package)
    assert sorted(module.__all__) == PUBLIC[package]
    for name in module.__all__:
        assert hasattr(module, name), f"{package}.{name} is promised and not there"


def test_importing_the_package_loads_no_broker_module() -> None:
    program = "import sys, toymq_py; print(*sorted(name for name in sys.modules if name.startswith('toymq_py')))"
    loaded = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == ["toymq_py"]


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_a_package_file_re_exports_and_never_implements(package: Path) -> None:
    body = ast.parse((package / "__init__.py").read_text()).body
    implemented = [
        node.name
        for node in body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name != "__getattr__"
    ]
    assert not implemented, f"{package.name}/__init__.py implements {implemented}: give it a file of its own"
