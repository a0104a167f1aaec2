"""The guides tell the truth: every program in them runs against a real broker and says what the guide says; links lead
somewhere.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.broker_process import ROOT, TIMEOUT_S, BrokerProcess, environment

GUIDES = (
    "quickstart", "delivery-guarantees", "reconnects", "idempotent-publishing", "work-queues", "dead-letters",
    "delays-and-expiry", "embedded", "tracing", "testing-your-app",
)  # fmt: skip
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def text_of(guide: str) -> str:
    return (ROOT / "docs" / f"{guide}.md").read_text()


def programs() -> list[tuple[str, str, str]]:
    """(guide and number, program, what it prints)."""
    found = []
    for guide in GUIDES[:-1]:
        blocks = BLOCK.findall(text_of(guide))
        assert len(blocks) % 2 == 0, f"{guide}: a program and what it prints, in turn"
        for number, ((kind, program), (said_kind, said)) in enumerate(zip(blocks[::2], blocks[1::2], strict=True)):
            assert (kind, said_kind) == ("python", "text"), f"{guide}: a program and what it prints, in turn"
            found.append((f"{guide} {number}", program, said))
    return found


def run_program(program: str, broker: BrokerProcess, folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program.replace("127.0.0.1:6789", f"127.0.0.1:{broker.port}")],
        env=environment(), cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(("name", "program", "said"), programs(), ids=lambda value: value if len(value) < 40 else "")
def test_a_program_says_what_the_guide_says(tmp_path: Path, name: str, program: str, said: str) -> None:
    with BrokerProcess(tmp_path / "d") as broker:
        done = run_program(program, broker, tmp_path)
    assert done.stderr == ""
    assert done.stdout == said


def test_the_programs_of_the_quickstart_run_one_after_the_other_and_again(tmp_path: Path) -> None:
    """As a reader runs them: on one broker, whose topics they share."""
    quickstart = [program for name, program, _ in programs() if name.startswith("quickstart")]
    with BrokerProcess(tmp_path / "d") as broker:
        said = [run_program(program, broker, tmp_path).stdout for program in quickstart * 2]
    assert said[:3] == ["Receipt(msg_id=0, duplicate=False)\n0 b'hello'\n", "9999\n10000\n", "1\n2\n3\na\nb\nc\n"]
    assert said[3:] == ["Receipt(msg_id=4, duplicate=False)\n4 b'hello'\n", "19999\n10000\n", "5\n6\n7\na\nb\nc\n"]


@pytest.mark.parametrize("guide", GUIDES)
def test_links_lead_somewhere(guide: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", text_of(guide)):
        assert (ROOT / "docs" / target).exists(), target


def test_the_readme_names_every_guide() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [guide for guide in GUIDES if f"docs/{guide}.md" not in readme] == []
