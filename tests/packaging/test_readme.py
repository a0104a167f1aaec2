"""The README tells the truth: its paths and make targets exist, and its program runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.broker_process import ROOT, TIMEOUT_S, BrokerProcess, environment

README = (ROOT / "README.md").read_text()
LINES_MAX = 100


def python_block() -> str:
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    return str(block)


def test_every_path_is_there() -> None:
    pages = README + (ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"`((?:toymq_py|tests|clients|adr|docs)/[\w./-]+)`|\]\(([\w./-]+)\)", pages))
    paths = {path or link for path, link in named}
    assert len(paths) > 30
    assert [name for name in sorted(paths) if not (ROOT / name).exists()] == []


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= LINES_MAX


def test_its_first_commands_show_and_test() -> None:
    (block,) = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    commands = [line.split("#")[0].strip() for line in block.splitlines()]
    assert commands == ["make demo", "make run", "make test", "pip install ."]


def test_every_make_target_exists_and_has_its_line_of_help() -> None:
    makefile = (ROOT / "Makefile").read_text()
    helped = set(re.findall(r"^([a-z-]+):.*## \S", makefile, re.MULTILINE))
    phony = set(re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[0].split())
    assert helped == phony
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    named = {
        target for page in pages for line in re.findall(r"`make ([a-z-]+)|^make ([a-z-]+)", page.read_text(), re.MULTILINE)
        for target in line if target
    }  # fmt: skip
    assert len(named) > 10
    assert named <= helped


def test_each_promise_names_its_tests() -> None:
    promises = re.findall(r"^\d\. (.*?)(?=^\d\. |^$)", README, re.MULTILINE | re.DOTALL)
    assert len(promises) == 4
    assert [promise for promise in promises if "`tests/" not in promise] == []


@pytest.mark.parametrize("call", ["open", "connect"])
def test_the_program_runs_and_runs_again(tmp_path: Path, call: str) -> None:
    script = python_block()
    assert len([line for line in script.splitlines() if line.strip()]) <= 10
    with BrokerProcess(tmp_path / "d") as broker:
        if call == "connect":
            script = script.replace('toymq.open("./queue")', f'toymq.connect("toymq://127.0.0.1:{broker.port}")')
        for number in range(2):
            done = subprocess.run(
                [sys.executable, "-W", "error", "-c", script], env=environment(), cwd=tmp_path, capture_output=True, text=True,
                timeout=TIMEOUT_S, check=False,
            )  # fmt: skip
            assert done.stderr == ""
            assert done.stdout == f"Receipt(msg_id={number}, duplicate=False)\n{number} b'hello'\n"
        assert (tmp_path / "queue").exists() == (call == "open")


def test_every_adr_is_in_the_index() -> None:
    index = (ROOT / "adr" / "README.md").read_text()
    pages = sorted(path.name for path in (ROOT / "adr").glob("0*.md"))
    assert sorted(re.findall(r"\((\d{4}-[\w-]+\.md)\)", index)) == pages
    titles = dict(re.findall(r"\]\((\d{4}-[\w-]+\.md)\) \| (.*?)(?: \(overturned[^|]*\))? \|", index))
    for page in pages:
        text = (ROOT / "adr" / page).read_text()
        assert text.startswith(f"# {page[:4]} {titles[page]}\n"), page
        named = re.findall(r"`((?:tests|toymq_py)/[\w./-]+)`", text)
        assert named, f"{page} names no test"
        assert [name for name in named if not (ROOT / name).exists()] == [], page
        for heading in ("## Context", "## Decision", "## Consequences", "## Shown by"):
            assert heading in text, f"{page}: {heading}"
