"""Facts about the machine that accompany every figure."""

import json
from typing import Any

import pytest

from tests.support.bench_results import FACTS
from toymq_bench import machine


class Installed:
    """The installer's metadata of a distribution."""

    version = "1.0"

    def __init__(self, origin: dict[str, Any] | None) -> None:
        self.files = {"WHEEL": "Wheel-Version: 1.0\nTag: cp311-cp311-linux_x86_64\n"}
        if origin is not None:
            self.files["direct_url.json"] = json.dumps(origin)

    def read_text(self, name: str) -> str | None:
        return self.files.get(name)


def test_the_facts_are_told_and_name_no_host() -> None:
    assert FACTS.keys() == {"date", "cpu", "cores", "kernel", "file_system", "python", "build", "wheel", "commit"}
    assert FACTS["file_system"] != "unknown"


@pytest.mark.parametrize(
    ("origin", "wheel"),
    [
        ({"url": "file:///src", "dir_info": {"editable": True}}, None),
        (None, "toymq-1.0-cp311-cp311-linux_x86_64.whl"),
        ({"url": "file:///src", "dir_info": {}}, "toymq-1.0-cp311-cp311-linux_x86_64.whl"),
        (
            {"url": "file:///d/toymq.whl", "archive_info": {"hashes": {"sha256": "0123456789abcdef" * 4}}},
            "toymq-1.0-cp311-cp311-linux_x86_64.whl sha256:0123456789abcdef",
        ),
    ],
)
def test_the_wheel_that_is_measured(origin: dict[str, Any] | None, wheel: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "distribution", lambda name: Installed(origin))
    assert machine.wheel() == wheel


def test_a_line_names_build_and_wheel() -> None:
    facts = {**FACTS, "python": "3.11.7", "build": "compiled, zlib_ng", "wheel": "toymq.whl sha256:01"}
    assert "Python 3.11.7 (compiled, zlib_ng, toymq.whl sha256:01), " in machine.line(facts)
    assert "Python 3.11.7 (as source), " in machine.line({**facts, "build": "as source", "wheel": None})
    del facts["wheel"]  # a file of an earlier version
    assert "Python 3.11.7 (compiled, zlib_ng), " in machine.line(facts)
