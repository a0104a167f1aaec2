"""docs/http.md tells the truth: its transcript is what happens."""

import re
import subprocess
from pathlib import Path

from tests.support.broker_process import ROOT, TIMEOUT_S, BrokerProcess
from tests.support.requirements import require
from toymq_py.gateway.problems import STATUS

GUIDE = (ROOT / "docs" / "http.md").read_text()
ADDRESS = "http://127.0.0.1:7800/"


def exchanges() -> list[tuple[str, str]]:
    """(command, what it prints)."""
    (block,) = re.findall(r"^```console\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    return [tuple(part.split("\n", 1)) for part in block.split("$ ")[1:]]


@require("curl")
def test_the_transcript(tmp_path: Path) -> None:
    assert len(exchanges()) > 10
    with BrokerProcess(tmp_path / "d", "--http", "127.0.0.1:0") as broker:
        for command, expected in exchanges():
            done = subprocess.run(
                ["bash", "-c", command.replace(ADDRESS, broker.http)],
                capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
            )  # fmt: skip
            said = re.sub(r'"time_ms": \d{13}', '"time_ms": 1795285965938', done.stdout)
            assert said.rstrip("\n") == expected.rstrip("\n"), command


def test_every_status_and_code_of_the_table() -> None:
    rows = re.findall(r"^\| ([\d, ]+) \| (.*) \|$", GUIDE, re.MULTILINE)
    named = {code for _, text in rows for code in re.findall(r"`([A-Z_]+)`", text)}
    for statuses, text in rows:
        codes = re.findall(r"`([A-Z_]+)`", text)
        assert {STATUS[code] for code in codes} == {int(status) for status in statuses.split(", ")}, text
    never = {"ALREADY_SUBSCRIBED", "NOT_SUBSCRIBED", "OUT_OF_SEQUENCE", "TOO_MANY_SUBSCRIPTIONS", "INTERNAL", "NOT_TCP"}
    assert named == set(STATUS) - never


def test_the_readme_names_the_guide() -> None:
    assert "docs/http.md" in (ROOT / "README.md").read_text()
