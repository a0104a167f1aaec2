"""The README tells the truth: its paths are there, its targets exist, its examples run."""

import re
import subprocess
import sys
from pathlib import Path

from tests.support.broker_process import ROOT, TIMEOUT_S, BrokerProcess, environment
from toymq_py.protocol.commands import VERBS

README = (ROOT / "README.md").read_text()


def test_every_path_is_there() -> None:
    named = set(re.findall(r"`((?:toymq_py|tests|clients|adr)/[\w./-]+)`|\]\(([\w./-]+)\)", README))
    paths = {path or link for path, link in named}
    assert len(paths) > 10
    assert [name for name in sorted(paths) if not (ROOT / name).exists()] == []


def test_it_begins_with_the_two_commands() -> None:
    blocks = re.findall(r"```\w*\n(.*?)```", README, re.DOTALL)
    assert [line.split("#")[0].strip() for line in blocks[0].splitlines()] == ["make demo", "make test"]


def test_every_make_target_exists_and_has_its_line_of_help() -> None:
    makefile = (ROOT / "Makefile").read_text()
    helped = set(re.findall(r"^([a-z-]+):.*## \S", makefile, re.MULTILINE))
    phony = set(re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)[0].split())
    assert helped == phony
    everywhere = README + (ROOT / "CONTRIBUTING.md").read_text()
    assert set(re.findall(r"`make ([a-z-]+)`|^make ([a-z-]+)", everywhere, re.MULTILINE)) <= {
        pair for target in helped for pair in ((target, ""), ("", target))
    }


def test_the_verbs_are_those_that_are_there() -> None:
    (listed,) = re.findall(r"^Verbs: `([A-Z ]+)`", README, re.MULTILINE)
    assert set(listed.split()) == set(VERBS) | {"PUB"}


def test_the_wire_example_is_what_the_broker_says(tmp_path: Path) -> None:
    (block,) = re.findall(r"```\n(> PUB orders.*?)```", README, re.DOTALL)
    with BrokerProcess(tmp_path / "d") as broker, broker.connect() as wire:
        for line in block.splitlines():
            if line.startswith("> "):
                wire.send(line[2:].encode() + b"\n")
            else:
                said = re.sub(rb"\d{19}", b"1781767800000000000", wire.line())
                assert said.decode() == line[2:]


def test_the_python_example_runs_and_ends_and_runs_again(tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    with BrokerProcess(tmp_path / "d") as broker:
        script = block.replace("127.0.0.1:6789", f"127.0.0.1:{broker.port}")
        for number in range(2):
            done = subprocess.run(
                [sys.executable, "-c", script], env=environment(), capture_output=True, text=True, timeout=TIMEOUT_S, check=True
            )
            assert done.stdout == f"Receipt(msg_id={number}, duplicate=False)\n{number} b'hello'\n"
        with broker.connect() as wire:
            assert b'"backlog": 0' in wire.ask(b"DESCRIBE orders\n") + wire.line(), "leaving says the ack"


def test_every_adr_is_in_the_index() -> None:
    index = (ROOT / "adr" / "README.md").read_text()
    pages = sorted(path.name for path in (ROOT / "adr").glob("0*.md"))
    assert sorted(re.findall(r"\((\d{4}-[\w-]+\.md)\)", index)) == pages
    for page in pages:
        text = (ROOT / "adr" / page).read_text()
        named = re.findall(r"`((?:tests|toymq_py)/[\w./-]+)`", text)
        assert named, f"{page} names no test"
        assert [name for name in named if not (ROOT / name).exists()] == [], page
        for heading in ("## Context", "## Decision", "## Consequences", "## Shown by"):
            assert heading in text, f"{page}: {heading}"
