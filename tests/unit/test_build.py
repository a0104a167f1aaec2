"""How an installation describes itself, compiled or not. ADR 0095."""

import importlib.machinery
import tomllib

import pytest

from tests.support.broker_process import ROOT
from toymq_py import build


def test_the_probe_is_compiled_in_a_compiled_wheel() -> None:
    hooks = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]
    assert build.PROBE.replace(".", "/") + ".py" in hooks["custom"]["modules"]


@pytest.mark.parametrize(
    ("origin", "compiled"),
    [
        ("/lib/toymq_py/records.py", False),
        ("/lib/toymq_py/records" + importlib.machinery.EXTENSION_SUFFIXES[0], True),
        (None, False),
    ],
)
def test_a_module_is_compiled_or_source(origin: str | None, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def found(name: str) -> importlib.machinery.ModuleSpec:
        asked.append(name)
        return importlib.machinery.ModuleSpec(name, None, origin=origin)

    monkeypatch.setattr(build, "find_spec", found)
    assert build.compiled() is compiled
    assert asked == [build.PROBE]


@pytest.mark.parametrize(
    ("compiled", "fast_crc", "said"),
    [
        (True, True, "compiled, zlib_ng"),
        (True, False, "compiled"),
        (False, True, "as source, zlib_ng"),
        (False, False, "as source"),
    ],
)
def test_the_build_in_a_few_words(compiled: bool, fast_crc: bool, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "compiled", lambda: compiled)
    monkeypatch.setattr(build, "fast_crc", lambda: fast_crc)
    assert build.describe() == said
