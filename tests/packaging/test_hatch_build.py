"""The build hook: what it compiles, when it does not, and that a compiled broker keeps the promises. ADR 0095."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from pkgutil import walk_packages
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement

import toymq
import toymq_py
import toymqctl
from tests.packaging.test_distribution import built, fresh, serve_and_kill, sha256
from tests.support.broker_process import ROOT
from toymq_py.cli.options import unknown_variables

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
MODULES: list[str] = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["modules"]
COMPILER = pytest.mark.skipif(shutil.which(os.environ.get("CC", "cc")) is None, reason="there is no C compiler")


def hook_of(file: Path) -> ModuleType:
    spec = spec_from_file_location("hatch_build", file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the module hatch_build.py, on a machine that can compile."""
    module = hook_of(ROOT / "hatch_build.py")
    monkeypatch.delenv("TOYMQ_MYPYC", raising=False)
    monkeypatch.setenv("CC", sys.executable)  # a program that is there
    return module


class Screen:
    """Records the messages of the hook."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.info: list[str] = []
        self.display_warning = self.warnings.append
        self.display_info = self.info.append


def compile_hook(hook: ModuleType, root: Path, *modules: str) -> tuple[Any, Screen]:
    screen = Screen()
    return hook.CompileHook(str(root), {"modules": list(modules)}, None, None, str(root), "wheel", screen), screen


def small_source(root: Path, text: str) -> None:
    (root / "package").mkdir()
    (root / "package" / "__init__.py").touch()
    (root / "package" / "one.py").write_text(text)


def test_every_module_that_is_compiled_exists() -> None:
    assert len(MODULES) > 10
    assert [name for name in MODULES if not (ROOT / name).is_file()] == []
    assert sorted(set(MODULES)) == sorted(MODULES)


def test_no_compiled_class_passes_arguments_on_by_a_star() -> None:
    """Found: mypyc compiles ``Base.__init__(self, *args)`` of a native class to a call without the arguments, so tracing did
    not work."""
    found = []
    for module in MODULES:
        path = ROOT / f"{module.removesuffix('.py')}.py"
        for call in (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)):
            starred = any(isinstance(arg, ast.Starred) for arg in call.args) or any(word.arg is None for word in call.keywords)
            if starred and isinstance(call.func, ast.Attribute) and call.func.attr == "__init__":
                found.append(f"{module}:{call.lineno}")
    assert found == []


def classes(module: str) -> Iterator[type]:
    """Yield the classes that a module defines."""
    return (each for each in vars(import_module(module)).values() if isinstance(each, type) and each.__module__ == module)


def test_no_interpreted_class_inherits_from_a_compiled_one() -> None:
    """Found: such a class raises TypeError when it is first created: in a wheel each PULL of a pattern failed, and a webhook on
    one ended the broker."""
    names = {name.removesuffix(".py").replace("/", ".") for name in MODULES}
    compiled = {each for name in names for each in classes(name)}
    assert len(compiled) > 100
    everything = [
        module.name
        for package in (toymq_py, toymq, toymqctl) for module in walk_packages(package.__path__, f"{package.__name__}.")
        if not module.name.endswith("__main__")
    ]  # fmt: skip
    found = [
        f"{each.__module__}.{each.__qualname__}: {base.__qualname__}"
        for module in everything if module not in names
        for each in classes(module) for base in each.__bases__ if base in compiled
    ]  # fmt: skip
    assert found == []


@pytest.mark.parametrize("name", MODULES)
def test_no_compiled_module_refers_weakly(name: str) -> None:
    """Found: a weak reference to an object of a compiled class raises TypeError: in a wheel no old segment was removed any
    more."""
    assert "weakref" not in (ROOT / name).read_text()


def test_make_types_translates_all_of_them(hook: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: code that mypy accepts and mypyc refuses was noticed only by a user: pip silently installed the plain source."""
    asked: list[list[str]] = []
    monkeypatch.setitem(vars(hook), "translate", lambda directory, modules: asked.append(modules))
    hook.check_modules(ROOT / "pyproject.toml")
    assert asked == [MODULES]
    assert "hatch_build.py --check" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("name", MODULES)
def test_no_compiled_module_has_what_mypyc_changes(name: str) -> None:
    """Found when the modules of an HTTP request were compiled: an exception's class attributes were those of its base, so that
    a 505 had the code INTERNAL; ``except A as error`` and ``except B as error`` in one function raised TypeError for a B of the
    same module; an async generator had no ``__aiter__``."""
    tree = ast.parse((ROOT / name).read_text())
    errors = {
        each.name: each for each in ast.walk(tree)
        if isinstance(each, ast.ClassDef) and any(re.search(r"Error$|Exception$", ast.unparse(base)) for base in each.bases)
    }  # fmt: skip
    for each in errors.values():
        assert not any(isinstance(part, ast.Assign | ast.AnnAssign) for part in each.body), f"{each.name} has attributes"
    for each in ast.walk(tree):
        if isinstance(each, ast.ExceptHandler) and each.name is not None:
            assert each.type is not None
            assert not re.search(rf"\b({'|'.join(errors) or '-'})\b", ast.unparse(each.type)), f"line {each.lineno}"
        if isinstance(each, ast.AsyncFunctionDef):
            assert not any(isinstance(part, ast.Yield) for part in ast.walk(each)), f"{each.name} is an async generator"


def test_make_types_has_the_compiler_of_the_build(hook: ModuleType) -> None:
    """Both use the same mypy, so that a module which passes the check in a checkout can be compiled in a build."""
    ours = {Requirement(text).name: Requirement(text) for text in PROJECT["project"]["optional-dependencies"]["dev"]}
    (asked,) = (Requirement(text) for text in hook.REQUIRES if text.startswith("mypy"))
    assert ours["mypy"] == asked


def test_a_wheel_is_built_for_each_python_that_is_promised() -> None:
    versions = re.findall(r":: (3\.\d+)$", "\n".join(PROJECT["project"]["classifiers"]), re.MULTILINE)
    assert PROJECT["tool"]["cibuildwheel"]["build"].split() == [f"cp{version.replace('.', '')}-*" for version in versions]


def test_the_switch_is_not_taken_for_an_option_of_serve(hook: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: with TOYMQ_COMPILE set, serve asked whether TOYMQ_COMMIT was meant."""
    monkeypatch.setenv(hook.SWITCH, "0")
    assert unknown_variables() == []


def test_what_a_build_needs(hook: ModuleType, tmp_path: Path) -> None:
    compile_, _ = compile_hook(hook, tmp_path)
    assert compile_.dependencies() == hook.REQUIRES


@pytest.mark.parametrize(
    ("variables", "reason"),
    [({"TOYMQ_MYPYC": "0"}, "TOYMQ_MYPYC=0"), ({"CC": "no-such-compiler -O2"}, "there is no C compiler (cc)")],
)
def test_a_pure_wheel_needs_nothing_and_says_why(
    variables: dict[str, str], reason: str, hook: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    compile_, screen = compile_hook(hook, tmp_path, "package/one.py")
    assert compile_.dependencies() == []
    data: dict[str, Any] = {"force_include": {}}
    compile_.initialize("standard", data)
    assert data == {"force_include": {}}
    assert screen.warnings == [f"toymq is not compiled: {reason}. The wheel has its source, and takes more CPU"]


def test_without_headers_of_python(hook: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook.sysconfig, "get_path", lambda name: str(tmp_path))
    assert hook._hindrance() == "Python.h is missing (Debian: python3-dev)"


def test_the_interpreters_compiler_may_be_gone(hook: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Python that was built elsewhere names that machine's compiler."""
    monkeypatch.delenv("CC")
    monkeypatch.setattr(hook.sysconfig, "get_config_var", lambda name: "their-cc -pthread" if name == "CC" else None)
    there = {"cc", "their-cc"}
    monkeypatch.setattr(hook.shutil, "which", lambda name: name if name in there else None)
    assert hook._compiler() == "their-cc -pthread"
    there.remove("their-cc")
    assert hook._compiler() == "cc"
    monkeypatch.setenv("CC", "mine")
    assert hook._compiler() is None, "what was asked for by name is not replaced"


def test_a_compilation_that_fails_gives_a_pure_wheel(hook: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_source(tmp_path, "value: int = )\n")
    compile_, screen = compile_hook(hook, tmp_path, "package/one.py")
    run, done = subprocess.run, []
    monkeypatch.setattr(hook.subprocess, "run", lambda *args, **options: done.append(run(*args, **options)) or done[0])
    data: dict[str, Any] = {"force_include": {}}
    compile_.initialize("standard", data)
    assert data == {"force_include": {}}
    assert len(screen.warnings) == 1
    assert screen.warnings[0].startswith("toymq is not compiled: mypyc failed: ")
    assert "package/one.py:1: error: " in screen.info[0], "the whole of it for pip --verbose"
    monkeypatch.setattr(hook.subprocess, "run", lambda *_, **__: done[0])  # mypy says the same again
    monkeypatch.setenv("TOYMQ_MYPYC", "1")
    with pytest.raises(RuntimeError, match=r"^TOYMQ_MYPYC=1 asks for a compiled wheel: mypyc failed: "):
        compile_.initialize("standard", data)


def test_an_editable_installation_is_the_source(hook: ModuleType, tmp_path: Path) -> None:
    compile_, screen = compile_hook(hook, tmp_path, "package/missing.py")
    data: dict[str, Any] = {"force_include": {}}
    compile_.initialize("editable", data)
    assert (data, screen.warnings) == ({"force_include": {}}, [])


@COMPILER
def test_a_module_is_compiled_beside_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The short form of the next test: one module, not the broker's. gcc takes three seconds for mypyc's library."""
    monkeypatch.delenv("TOYMQ_MYPYC", raising=False)
    quick = tmp_path / "hatch_build.py"
    quick.write_text((ROOT / "hatch_build.py").read_text().replace('OPTIMIZATION = "1"', 'OPTIMIZATION = "0"'))
    tmp_path = tmp_path / "source"
    tmp_path.mkdir()
    small_source(tmp_path, "def twice(number: int) -> int:\n    return 2 * number\n")
    compile_, screen = compile_hook(hook_of(quick), tmp_path, "package/one.py")
    data: dict[str, Any] = {"force_include": {}}
    compile_.initialize("standard", data)
    assert screen.warnings == []
    assert (data["pure_python"], data["infer_tag"]) == (False, True)
    assert {name.partition(".")[0] for name in data["force_include"].values()} == {"package/one", "toymq__mypyc"}
    assert {path.name for path in tmp_path.rglob("*")} == {"package", "__init__.py", "one.py"}, "nothing stays in the source"
    for made, name in data["force_include"].items():
        shutil.copy(made, tmp_path / name)
    compile_.finalize("standard", data, "")
    assert [made for made in data["force_include"] if Path(made).exists()] == []
    code = "import package.one; print(package.one.__file__.endswith('.so'), package.one.twice(21))"
    said = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert said.stdout == "True 42\n"


def said_by(bin_: Path, code: str, directory: Path) -> str:
    return subprocess.run([bin_ / "python", "-c", code], cwd=directory, check=True, capture_output=True, text=True).stdout


@pytest.mark.torture
@COMPILER
def test_the_compiled_wheel_keeps_its_promises(tmp_path: Path) -> None:
    """The output of make dist: the same bytes twice, all listed modules, and a broker that keeps its promises under faults."""
    made, again = (built(ROOT, tmp_path / name, "1")[".whl"] for name in ("a", "b"))
    assert made.name == again.name
    assert "none-any" not in made.name
    assert sha256(made) == sha256(again)
    with zipfile.ZipFile(made) as wheel:
        names = wheel.namelist()
    compiled = {name.partition(".")[0] + ".py" for name in names if name.endswith(".so")} - {"toymq__mypyc.py"}
    assert compiled == set(MODULES)
    assert set(MODULES) <= set(names), "the sources are there, too"
    bin_ = fresh(tmp_path, f"{made}[http,bench,plots]")
    facts = json.loads(said_by(bin_, "import json; from toymq_bench.machine import facts; from pathlib import Path; "
                               "print(json.dumps(facts(Path())))", tmp_path))  # fmt: skip
    assert facts["build"].startswith("compiled")
    assert facts["wheel"] == f"{made.name} sha256:{sha256(made)[:16]}"
    assert "running from source" not in serve_and_kill(tmp_path, bin_)
    chaos = [bin_ / "toymq-chaos", "run", "--seed", "1", "--duration", "30s", "--out", tmp_path / "chaos"]
    done = subprocess.run(chaos, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
