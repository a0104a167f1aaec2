"""What users may import, pinned: a name that appears or goes is a decision, not an accident."""

import ast
import importlib
import inspect
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


def test_the_client_is_typed() -> None:
    client = importlib.import_module("toymq_client")
    assert Path(client.__file__ or "").with_name("py.typed").exists(), "without it type checkers take all for Any"
    functions = {"connect": client.connect}
    for name in client.__all__:
        functions |= {f"{name}.{key}": value for key, value in vars(getattr(client, name)).items() if key[0] != "_"}
    signatures = {name: inspect.signature(function) for name, function in functions.items() if inspect.isfunction(function)}
    assert len(signatures) > 20
    for name, signature in signatures.items():
        assert signature.return_annotation is not signature.empty, f"{name} does not say what it returns"
        for parameter in signature.parameters.values():
            assert parameter.name == "self" or parameter.annotation is not parameter.empty, f"{name}: {parameter.name}"


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_a_package_file_re_exports_and_never_implements(package: Path) -> None:
    body = ast.parse((package / "__init__.py").read_text()).body
    implemented = [
        node.name
        for node in body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.name != "__getattr__"
    ]
    assert not implemented, f"{package.name}/__init__.py implements {implemented}: give it a file of its own"
