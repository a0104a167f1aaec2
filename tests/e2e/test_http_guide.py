"""docs/http.md and docs/dialects.md tell the truth: their transcripts are what happens."""

import base64
import json
import random
import re
import subprocess
from pathlib import Path

from tests.support.broker_process import ROOT, TIMEOUT_S, BrokerProcess
from tests.support.http_receiver import receiving
from tests.support.http_rig import listening
from tests.support.requirements import require
from tests.support.sim_disk import SimDisk
from tests.support.websockets import frames
from toymq_py.gateway.problems import STATUS
from toymq_py.gateway.websocket import MEMBERS

GUIDE = (ROOT / "docs" / "http.md").read_text()
DIALECTS = (ROOT / "docs" / "dialects.md").read_text()
ADDRESS = "http://127.0.0.1:7800/"
UUID = re.compile(r"\w{8}(?:-\w{4}){3}-\w{12}")


def exchanges(guide: str) -> list[tuple[str, str]]:
    """Return (command, what it prints) of each transcript."""
    blocks = re.findall(r"^```console\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    return [tuple(part.split("\n", 1)) for block in blocks for part in block.split("$ ")[1:]]


def longer(command: str, expected: str, broker: BrokerProcess) -> str:
    """Return what a command prints that ends after a second, or later on a busy machine."""
    for most_s in (1, 5, TIMEOUT_S // 2) if " -m 1 " in command else (1,):
        said = printed_by(command.replace(" -m 1 ", f" -m {most_s} "), broker)
        if said.count("\n") >= expected.count("\n"):
            break
    return said


def printed_by(command: str, broker: BrokerProcess) -> str:
    done = subprocess.run(
        ["bash", "-c", command.replace(ADDRESS, broker.http)], capture_output=True, timeout=TIMEOUT_S, check=False
    )
    return done.stdout.decode().replace("\r\n", "\n")


@require("curl")
def test_the_transcript(tmp_path: Path) -> None:
    assert len(exchanges(GUIDE)) > 10
    with BrokerProcess(tmp_path / "d", "--http", "127.0.0.1:0") as broker:
        for command, expected in exchanges(GUIDE):
            said = re.sub(r'"time_ms": \d{13}', '"time_ms": 1795285965938', longer(command, expected, broker))
            said = re.sub(r'"lease": \d+', '"lease": 203859302847392', said)
            assert said.rstrip("\n") == expected.rstrip("\n"), command


@require("curl")
def test_the_transcripts_of_the_dialects(tmp_path: Path) -> None:
    (documented,) = set(UUID.findall(DIALECTS))
    given = documented
    (served,) = re.findall(r"^toymq serve --http 127.0.0.1:7800 (.*?) *#", DIALECTS, re.MULTILINE)
    with BrokerProcess(tmp_path / "d", "--http", "127.0.0.1:0", *served.split()) as broker:
        for command, expected in exchanges(DIALECTS):
            said = printed_by(command.replace(documented, given), broker)
            given = (UUID.findall(said) or [given])[0]
            said = re.sub(r'"timestamp": "[^"]+"', '"timestamp": "2026-11-29T22:00:06.277096241Z"', said)
            assert said.replace(given, documented).rstrip("\n") == expected.rstrip("\n"), command


async def test_the_transcript_of_the_websocket() -> None:
    (block,) = re.findall(r"^```text\n(> .*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    async with listening("/data/d", fs=SimDisk(random.Random(1))) as rig, frames(rig, "orders") as ws:
        for line in block.splitlines():
            if line.startswith("> "):
                await ws.socket.send(line[2:])
            else:
                heard, printed = await ws.hear(), json.loads(line[2:])
                if "time_ms" in heard:
                    heard["time_ms"] = printed["time_ms"]
                assert heard == printed


def test_the_members_of_the_frames() -> None:
    table = GUIDE.partition("## WebSocket frames")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", table.partition("|---")[2], re.MULTILINE)
    documented = {op: set(re.findall(r"`([a-z0-9_]+)`", members)) for op, members in rows}
    assert documented.keys() == MEMBERS.keys()
    for op, members in MEMBERS.items():
        assert members <= documented[op], op


async def test_the_headers_of_a_push() -> None:
    section = GUIDE.partition("## Webhooks")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`.*?`) \|", section, re.MULTILINE)
    documented = {name for cell in cells for name in re.findall(r"`([\w-]+)`", cell)}
    async with listening("/data/d", fs=SimDisk(random.Random(1)), private_webhooks=True) as rig, receiving() as receiver:
        secret = "whsec_" + base64.b64encode(b"0123456789abcdef").decode()
        hook = {"topic": "t", "url": f"http://127.0.0.1:{receiver.port}/", "secret": secret}
        assert (await rig.ask("PUT", "/v1/webhooks/mine", json=hook)).status_code == 201
        trace = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "X-Header-Tracestate": "v=1"}
        sent = {"Idempotency-Key": "k", "X-Header-Color": "red", **trace}
        assert (await rig.ask("POST", "/v1/topics/t/messages", content=b"\x00\xff", headers=sent)).status_code == 201
        headers, body = await receiver.next()
    assert body == b"\x00\xff"
    assert headers.keys() - {"host", "content-length", "connection"} == documented
    assert json.loads(headers["x-headers"])["color"] == "red"


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
