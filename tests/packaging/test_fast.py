"""The compiled build: what it names is there, and it keeps the promises. ADR 0015."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.broker_process import ROOT


def compiled_modules() -> list[str]:
    database = subprocess.run(["make", "-pn", "help"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    found = re.search(r"^COMPILED := (.*)$", database, re.MULTILINE)
    assert found is not None
    names = found[1].replace("$(patsubst %,toymq_py/%.py,", "").rstrip(")").split()
    return [name if name.endswith(".py") else f"toymq_py/{name}.py" for name in names]


def test_every_module_that_is_compiled_exists() -> None:
    modules = compiled_modules()
    assert len(modules) > 10
    assert [name for name in modules if not (ROOT / name).is_file()] == []


@pytest.mark.torture
@pytest.mark.skipif(shutil.which(os.environ.get("CC", "cc")) is None, reason="make fast needs a C compiler")
def test_the_compiled_broker_keeps_its_promises(tmp_path: Path) -> None:
    copy = tmp_path / "source"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "data", "build", "__pycache__"))
    subprocess.run(["make", "fast"], cwd=copy, check=True, capture_output=True)
    fast = copy / ".venv-fast" / "bin"
    build = "from toymq_bench.machine import build; print(build())"
    said = subprocess.run([fast / "python", "-c", build], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert said == "compiled, zlib_ng\n"
    chaos = [fast / "toymq-chaos", "run", "--seed", "1", "--duration", "30s", "--out", tmp_path / "chaos"]
    done = subprocess.run(chaos, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
