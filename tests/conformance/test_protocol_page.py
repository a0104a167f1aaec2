"""docs/protocol.md tells the truth: its transcripts run, and it has every verb, option, error code and limit of the code."""

import json
import re
from pathlib import Path

import pytest

from tests.conformance.test_transcripts import play
from tests.support.broker_process import ROOT
from tests.support.in_process import serving
from toymq_py.errors import REQUEST_ERRORS, PayloadTooLarge
from toymq_py.protocol.frames import LINE_BYTES_MAX
from toymq_py.protocol.header_lines import PUB_OPTIONS, VERBS
from toymq_py.setting_units import SETTINGS

PAGE = (ROOT / "docs" / "protocol.md").read_text()
TRANSCRIPTS = re.findall(r"^```wire\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
TIME = re.compile(r"\b\d{19}\b")


def command_lines() -> dict[str, str]:
    """Verb to its line in the tables of commands."""
    rows = re.findall(r"^\| (`[A-Z]+.*?) \| .*\|$", PAGE[: PAGE.index("## Replies and pushes")], re.MULTILINE)
    return {line.split()[0]: line for row in rows for line in re.findall(r"`([A-Z]+[^`]*)`", row)}


@pytest.mark.parametrize("number", range(len(TRANSCRIPTS)))
async def test_transcript(tmp_path: Path, number: int) -> None:
    await play([TIME.sub("{ts}", line) for line in TRANSCRIPTS[number].splitlines()], tmp_path / "d")


def test_every_verb_has_its_line_with_its_options() -> None:
    lines = command_lines()
    assert set(lines) == {*VERBS, "PUB"}
    for verb, line in lines.items():
        known = PUB_OPTIONS if verb == "PUB" else VERBS[verb].options
        if known is not None:
            assert set(re.findall(r"\[(\w+)=", line)) == known, verb


def test_every_verb_has_its_right_on_the_security_page() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    table = page[page.index("| right | commands |") : page.index("- *One* of the token's patterns")]
    named = set(re.findall(r"\b[A-Z]{3,}\b", table))
    assert named == {*VERBS, "PUB"} - {"HELLO"}


def test_every_error_code_has_its_row_and_says_whether_it_is_fatal() -> None:
    rows = re.findall(r"^\| (`[A-Z_]+`(?:, `[A-Z_]+`)*) \| (yes|no|over 64 MiB) \|", PAGE, re.MULTILINE)
    fatal = {code: said for codes, said in rows for code in re.findall(r"`([A-Z_]+)`", codes)}
    assert set(fatal) == set(REQUEST_ERRORS)
    of_code = {code: "yes" if error.fatal else "no" for code, error in REQUEST_ERRORS.items()}
    assert fatal == {**of_code, PayloadTooLarge.code: "over 64 MiB"}


def test_every_code_of_closed_is_there() -> None:
    ends = re.compile(r"\.(?:end|end_all|end_sessions|close|stop_deliveries)\(\"([A-Z_]+)\"\)")
    source = "".join(path.read_text() for path in (ROOT / "toymq_py").rglob("*.py"))
    (row,) = re.findall(r"^\| `CLOSED .*", PAGE, re.MULTILINE)
    assert set(re.findall(r"`([A-Z_]{4,})`", row)) == set(ends.findall(source))


def test_every_setting_is_there() -> None:
    (listed,) = re.findall(r"Settings are the same words everywhere: (.*?)\. On the wire", PAGE, re.DOTALL)
    assert set(re.findall(r"`(\w+)`", listed)) == set(SETTINGS)


def test_the_limit_of_a_line_is_that_of_the_code() -> None:
    assert f"| header line | {LINE_BYTES_MAX:,} bytes |" in PAGE


async def test_a_description_has_the_members_of_the_page(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    said = json.loads(block)
    async with serving(tmp_path / "d") as served:
        wire = await served.connect()
        wire.send(b"PUB orders - 5\nhello\nPULL orders billing 1\n")
        for _ in range(4):
            await wire.line()
        wire.send(b"DESCRIBE orders\n")
        got = json.loads(await wire.body(await wire.line()))
    assert list(got) == list(said)
    assert list(got["consumers"][0]) == list(said["consumers"][0])
