"""Hatchling's build hook: compiles the hot modules into a wheel, with mypyc. ADR 0095.

Owns how they are compiled; pyproject.toml lists which. Writes nothing into the source tree. As a program it is the part that
compiles, in a process of its own: mypy exits where it finds an error, and what it prints is shown only then.
"""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SWITCH = "TOYMQ_MYPYC"
"""Environment variable. ``0``: a pure wheel. ``1``: a compiled wheel, or the build fails. Unset: compiled where it can be."""
REQUIRES = ["mypy[mypyc]>=2.4", "setuptools>=77"]
OPTIMIZATION = "1"
"""gcc's -O1 took 46 s of CPU for the list of 2026-11-24, -O2 and -O3 71 to 73 s. Modules of -O2 were no faster (ADR 0095)."""
FLAGS = ["-fvisibility=hidden"]
"""Calls from module to module go straight, though each module is a C file of its own."""


class CompileHook(BuildHookInterface):  # type: ignore[type-arg] # it has a parameter for type checkers alone
    """Adds to a wheel compiled modules, beside their sources, which tracebacks and type checkers read, and the docs."""

    def dependencies(self) -> list[str]:
        """What is installed into the build's environment: nothing for a pure wheel."""
        return REQUIRES if _hindrance() is None else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the pages for ``toymq help``. Compile, or say in one line why not. Raises: RuntimeError when the switch is 1 and
        it fails."""
        if version == "editable":
            return
        pages = sorted(Path(self.root, "docs").glob("*.md"))
        build_data["force_include"] |= {str(page): f"toymq_py/docs/{page.name}" for page in pages}
        hindrance = _hindrance()
        if hindrance is None:
            self._directory = tempfile.TemporaryDirectory(prefix="toymq-build-")
            command = [sys.executable, __file__, self._directory.name, *self.config["modules"]]
            # In the root: mypyc names modules, and the files of tracebacks, from there.
            done = subprocess.run(
                command, cwd=self.root, env={**os.environ, "CC": _compiler() or ""}, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, check=False,
            )  # fmt: skip
            if done.returncode == 0:
                lib = Path(self._directory.name, "lib")
                build_data["pure_python"] = False
                build_data["infer_tag"] = True
                build_data["force_include"] |= {str(path): str(path.relative_to(lib)) for path in sorted(lib.rglob("*.so"))}
                return
            self._directory.cleanup()
            self.app.display_info(done.stdout)
            hindrance = "mypyc failed: " + (done.stdout.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        if os.environ.get(SWITCH) == "1":
            raise RuntimeError(f"{SWITCH}=1 asks for a compiled wheel: {hindrance}")
        self.app.display_warning(f"toymq is not compiled: {hindrance}. The wheel has its source, and takes more CPU")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_directory"):
            self._directory.cleanup()


def _hindrance() -> str | None:
    """Why nothing can be compiled here; None: it can."""
    if os.environ.get(SWITCH) == "0":
        return f"{SWITCH}=0"
    if os.name != "posix" or sys.implementation.name != "cpython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "the compiled modules are tested on CPython for Linux and macOS, with its global lock"
    if _compiler() is None:
        return "there is no C compiler (cc)"
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        return "Python.h is missing (Debian: python3-dev)"
    return None


def _compiler() -> str | None:
    """The C compiler: what CC says, else what this Python was compiled with, or cc; None where it is not there."""
    asked = [os.environ["CC"]] if os.environ.get("CC") else [sysconfig.get_config_var("CC") or "cc", "cc"]
    return next((command for command in asked if shutil.which(shlex.split(command)[0])), None)


def translate(directory: Path, modules: list[str]) -> list[Any]:
    """Make C of modules, in ``directory``/c. Returns: extensions of setuptools. What mypyc refuses, and mypy does not, it says
    and exits."""
    from mypyc.build import mypycify  # this is in the build's environment only where _hindrance() is None

    options = ["--config-file=", "--cache-dir=/dev/null", "--ignore-missing-imports"]
    return mypycify(
        [*options, *modules], target_dir=str(directory / "c"), group_name="toymq", multi_file=True, opt_level=OPTIMIZATION,
        debug_level="0",
    )  # fmt: skip


def check_modules(project: Path) -> None:
    """Translate the modules of pyproject.toml, and keep nothing: for ``make types``."""
    wheel = tomllib.loads(project.read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    with tempfile.TemporaryDirectory(prefix="toymq-check-") as directory:
        translate(Path(directory), wheel["hooks"]["custom"]["modules"])


def compile_modules(directory: Path, modules: list[str]) -> None:
    """Compile modules into ``directory``/lib, on all cores: a C file for each, one library, so that they call each other."""
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    class Build(build_ext):  # type: ignore[misc] # setuptools is untyped
        """Compiles the files of a library at once; setuptools does so with libraries alone."""

        def build_extensions(self) -> None:
            compile_ = self.compiler.compile
            with ThreadPoolExecutor(os.cpu_count()) as pool:

                def compile_all(sources: list[str], **options: Any) -> list[str]:
                    return [made for [made] in pool.map(lambda source: compile_([source], **options), sources)]

                self.compiler.compile = compile_all
                super().build_extensions()

    extensions = translate(directory, modules)
    for extension in extensions:
        extension.extra_compile_args += FLAGS
    build = Build(Distribution({"name": "toymq", "ext_modules": extensions}))
    build.build_lib, build.build_temp, build.parallel = str(directory / "lib"), str(directory / "o"), os.cpu_count()
    build.ensure_finalized()
    build.run()


if __name__ == "__main__":
    if sys.argv[1] == "--check":
        check_modules(Path(__file__).with_name("pyproject.toml"))
    else:
        compile_modules(Path(sys.argv[1]), sys.argv[2:])
