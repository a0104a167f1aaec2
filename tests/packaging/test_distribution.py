"""The released wheel and sdist: built again they are equal byte for byte, can be installed anywhere, and run without an
extra."""

import hashlib
import os
import re
import signal
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import toymq_py
from tests.support.broker_process import ROOT, TIMEOUT_S

CORE = ("click", "crcmod", "uvloop")
"""What the core needs on every machine; pyproject.toml, ``dependencies``. Without zlib_ng, which is not everywhere."""
OF_AN_EXTRA = re.compile(
    r"toymq_py\.gateway\b|toymq_py\.observability\.tracing$|toymq\.(testing|tracing)$|toymqctl\.top\.screen$"
)
ONLY_THE_CORE = f"""
import sys
from importlib.metadata import packages_distributions

OURS = {{"toymq_py", "toymq", "toymqctl"}}
OTHERS = set(packages_distributions()) - OURS - set({CORE!r})

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in OTHERS:
            raise ModuleNotFoundError(f"blocked: {{name}}", name=name)

sys.meta_path.insert(0, Nothing())
"""


def built(source: Path, to: Path, compile_: str = "0") -> dict[str, Path]:
    """Return wheel and sdist of a source tree, by suffix."""
    env = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000", "TOYMQ_MYPYC": compile_}
    command = [sys.executable, "-W", "error", "-m", "hatchling", "build", "-d", str(to)]
    done = subprocess.run(command, cwd=source, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {path.suffix: path for path in to.iterdir()}


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return built(ROOT, tmp_path_factory.mktemp("dist"))


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_same_bytes_wherever_it_is_built(released: dict[str, Path], tmp_path: Path) -> None:
    """Also when built from the sdist, with other file times and permissions."""
    with tarfile.open(released[".gz"]) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    (source / "PKG-INFO").unlink()  # made by the build; there, it would come first
    for path in source.rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
        if path.is_file():
            path.chmod(0o700 if path.stat().st_mode & 0o100 else 0o600)
    again = built(source, tmp_path / "dist")
    assert again[".whl"].name == released[".whl"].name
    assert sha256(again[".whl"]) == sha256(released[".whl"])
    assert sha256(again[".gz"]) == sha256(released[".gz"])


def test_the_version_comes_from_one_place(released: dict[str, Path]) -> None:
    version = toymq_py.__version__
    assert [path.name for path in released.values()].count(f"toymq-{version}-py3-none-any.whl") == 1
    assert released[".gz"].name == f"toymq-{version}.tar.gz"
    with zipfile.ZipFile(released[".whl"]) as wheel:
        metadata = wheel.read(f"toymq-{version}.dist-info/METADATA").decode()
    assert f"\nVersion: {version}\n" in metadata
    ours = (path for top in ("toymq_py", "clients", "chaos") for path in (ROOT / top).rglob("*.py"))
    said = [path for path in ours if f'"{version}"' in path.read_text()]
    assert [path.relative_to(ROOT).as_posix() for path in said] == ["toymq_py/version.py"]
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert "\n## [Unreleased]\n" in changelog or f"\n## [{version}]" in changelog


def test_the_wheel_has_what_is_used_and_no_more(released: dict[str, Path]) -> None:
    with zipfile.ZipFile(released[".whl"]) as wheel:
        names = wheel.namelist()
        entry_points = wheel.read(next(name for name in names if name.endswith("entry_points.txt"))).decode()
    tops = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"toymq_py", "toymq", "toymqctl", "toymq_bench", "toymq_spark", "pyspark_toymq", "toymq_chaos"}
    assert {"toymq_py/py.typed", "toymq/py.typed"} <= set(names)
    pages = {f"toymq_py/docs/{path.name}" for path in (ROOT / "docs").glob("*.md")}
    assert {name for name in names if name.startswith("toymq_py/docs/")} == pages, "what `toymq help` shows"
    assert set(re.findall(r"^(toymq[\w-]*) = toymq[\w.]*:main$", entry_points, re.MULTILINE)) == {
        "toymq", "toymqctl", "toymq-bench", "toymq-chaos", "toymq-pipeline",
    }  # fmt: skip
    with tarfile.open(released[".gz"]) as archive:
        inside = {Path(name).parts[1] for name in archive.getnames() if len(Path(name).parts) > 1}
    assert {"pyproject.toml", "hatch_build.py", "LICENSE", "CHANGELOG.md", "toymq_py", "tests", "Makefile"} <= inside
    assert not any(name.startswith(".venv") or name in ("data", "dist") for name in inside)


def python(code: str, *arguments: str, executable: str = sys.executable) -> list[str]:
    return [executable, "-W", "error", "-c", code, *arguments]


def modules() -> Iterator[str]:
    for root in (ROOT / "toymq_py", ROOT / "clients" / "toymq", ROOT / "clients" / "toymqctl"):
        for path in sorted(root.rglob("*.py")):
            parts = path.relative_to(root.parent).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            if not OF_AN_EXTRA.match(name) and not name.endswith("__main__"):
                yield name


def test_every_module_of_the_core_is_imported_without_an_extra() -> None:
    """The imports give no warning either."""
    code = f"{ONLY_THE_CORE}\nimport importlib\nfor name in {list(modules())!r}: importlib.import_module(name)"
    done = subprocess.run(python(code), capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_the_block_blocks() -> None:
    command = python(ONLY_THE_CORE + "import pytest")
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert "ModuleNotFoundError: blocked: pytest" in done.stderr


def run_it(directory: Path, broker: list[str], operator: list[str]) -> None:
    """Serve, publish, consume, stop, without a warning. ``broker`` and ``operator``: how to call toymq and toymqctl."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("TOYMQ_", "PYTHON"))}
    serve = [*broker, "serve", "--data-dir", "d", "--listen", "127.0.0.1:0", "--min-free-bytes", "0", "--log-level", "warning"]
    pipe = subprocess.PIPE
    with subprocess.Popen(serve, cwd=directory, env=env, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert " ready" in line, process.communicate(timeout=TIMEOUT_S)

            def ctl(*arguments: str) -> str:
                command = [*operator, "--url", line.split()[1], *arguments]
                done = subprocess.run(
                    command, cwd=directory, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
                )
                assert (done.returncode, done.stderr) == (0, ""), done.stderr
                return done.stdout

            assert ctl("pub", "orders", "hello") == "OK 0\n"
            assert ctl("sub", "orders", "--max", "1") == "0\thello\n"
            process.terminate()
            _, errors = process.communicate(timeout=TIMEOUT_S)
            assert (process.returncode, errors) == (0, "")
        finally:
            process.kill()


def test_the_core_runs_without_an_extra(tmp_path: Path) -> None:
    broker = python(f"{ONLY_THE_CORE}\nfrom toymq_py.cli import main\nmain()")
    run_it(tmp_path, broker, python(f"{ONLY_THE_CORE}\nfrom toymqctl.cli import main\nmain()"))


def fresh(tmp_path: Path, *install: str) -> Path:
    """Return the ``bin`` of a new environment in which something was installed. Only used modules are compiled to bytecode."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    pip = [sys.executable, "-m", "pip", "--python", tmp_path / "venv", "--disable-pip-version-check"]
    command = [*pip, "install", "--quiet", "--no-compile"]
    done = subprocess.run([*command, *install], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return tmp_path / "venv" / "bin"


def use_it(directory: Path, bin_: Path) -> None:
    said = subprocess.run([bin_ / "toymq", "--version"], capture_output=True, text=True, check=True)
    assert said.stdout == f"toymq, version {toymq_py.__version__}\n"
    interpreter = str(bin_ / "python")
    run_it(directory, [interpreter, "-W", "error", str(bin_ / "toymq")], [interpreter, "-W", "error", str(bin_ / "toymqctl")])


@pytest.fixture(scope="module")
def installed(released: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the ``bin`` of a new environment with the wheel. It uses this environment's dependencies of the core, so that no
    index is needed; the torture test downloads them."""
    bin_ = fresh(tmp_path_factory.mktemp("fresh"), "--no-deps", "--no-index", str(released[".whl"]))
    site = next((bin_.parent / "lib").glob("python3*/site-packages"))
    for name in CORE:
        module = __import__(name)
        (site / name).symlink_to(Path(str(module.__file__)).parent)
    return bin_


def test_the_wheel_in_a_fresh_environment(installed: Path, tmp_path: Path) -> None:
    use_it(tmp_path, installed)


def serve_and_kill(directory: Path, bin_: Path) -> str:
    """Publish, kill -9, start again: the message is there. Returns: the log of both starts."""
    log = directory / "log"
    for start in (0, 1):
        with log.open("a") as to:
            command = [bin_ / "toymq", "serve", "--data-dir", "d", "--listen", "127.0.0.1:0", "--min-free-bytes", "0"]
            with subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, stderr=to, text=True) as process:
                assert process.stdout is not None
                url = process.stdout.readline().split()[1]

                def ctl(*arguments: str, url: str = url) -> str:
                    command = [bin_ / "toymqctl", "--url", url, *arguments]
                    return subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True).stdout

                if start == 0:
                    assert ctl("pub", "t", "hello") == "OK 0\n"
                    process.kill()
                else:
                    assert ctl("sub", "t", "--max", "1") == "0\thello\n"
                    process.terminate()
                code = process.wait()
                assert code == (0 if start else -signal.SIGKILL), log.read_text()
    return log.read_text()


def test_a_pure_wheel_runs_and_says_so_once(installed: Path, tmp_path: Path) -> None:
    log = serve_and_kill(tmp_path, installed)
    assert log.count("running from source") == 2, f"once for each start:\n{log}"


def required(*extras: str) -> set[str]:
    """Return the distributions that toymq installs, by pyproject.toml and the metadata of those that are installed here."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = project["dependencies"] + [text for extra in extras for text in project["optional-dependencies"][extra]]
    waiting = [(text, "") for text in texts]
    found: set[str] = set()
    for text, extra in waiting:
        texts, needed = [], Requirement(text)
        if needed.marker is None or needed.marker.evaluate({"extra": extra}):
            found.add(canonicalize_name(needed.name))
            with suppress(PackageNotFoundError):  # zlib-ng is not in every environment
                texts = requires(needed.name) or []
            more = [(text, each) for each in ("", *sorted(needed.extras)) for text in texts]
            waiting += [each for each in more if each not in waiting]
    return found


def test_make_run_installs_few_packages() -> None:
    """`make run` installs ``.[http]``; each further package is a decision (ADR 0078, ADR 0094)."""
    expected = {
        "click", "crcmod", "uvloop", "zlib-ng",
        "starlette", "anyio", "idna", "httptools", "websockets",
    } | ({"typing-extensions"} if sys.version_info < (3, 13) else set())  # fmt: skip
    assert required("http") == expected


@pytest.mark.torture
@pytest.mark.parametrize("suffix", [".whl", ".gz"])
def test_as_a_user_installs_it(released: dict[str, Path], tmp_path: Path, suffix: str) -> None:
    use_it(tmp_path, fresh(tmp_path, str(released[suffix])))
