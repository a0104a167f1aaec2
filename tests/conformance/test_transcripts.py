"""The protocol as transcripts, over TCP against the real server."""

import re
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.in_process import serving
from tests.support.requirements import require

SOURCE = Path(__file__).with_name("transcripts.txt").read_text()
BLOCKS = dict(re.findall(r"^== (.+)\n((?:[<>].*\n?)+)", SOURCE, re.MULTILINE))
WILD = re.compile(r"\\{(\w+)\\}")


def pattern_of(expected: str) -> re.Pattern[bytes]:
    pattern = WILD.sub(lambda match: r"\d{19}" if match[1] == "ts" else r".*", re.escape(expected))
    return re.compile(pattern.encode() + rb"\Z", re.DOTALL)


async def play(lines: list[str], data_dir: Path) -> None:
    """Send a transcript's lines behind > to a new broker, and compare its answers."""
    async with serving(data_dir) as served:
        wire = await served.connect()
        got = b""
        for at, line in enumerate(lines):
            if line.startswith(">"):
                wire.send(line[2:].encode() + b"\n")
                continue
            if line == "< end":
                assert await wire.rest() == b"", "the connection is closed, and nothing follows"
                return
            # frames have newlines of their own, in a time stamp or a CRC, too: their length says where they end
            got = await (wire.body(got) if got.startswith((b"BATCH ", b"JSON ")) else wire.line())
            assert pattern_of(line[2:]).match(got), f"line {at + 1}: {line!r} was expected, {got!r} came"
        if not lines[-1].startswith(">"):
            await wire.nothing_before_pong()


@pytest.mark.parametrize("name", BLOCKS)
async def test_transcript(tmp_path: Path, name: str) -> None:
    await play(BLOCKS[name].splitlines(), tmp_path / "d")


def test_every_block_was_found() -> None:
    assert len(BLOCKS) == SOURCE.count("\n== ") > 20


EXAMPLE = b"PUB orders - 5\nhello\nSUB orders billing\n", b"ACK orders billing 0\n"
ANSWERS = re.compile(rb"OK 0\nOK 1\nMSG orders 0 1 \d{19} - 5\nhello\nOK 1\n\Z")


@require("nc")
def test_the_worked_example_through_nc(tmp_path: Path) -> None:
    """Compare the answers byte for byte. The ack is sent to nc only when the message has arrived, as a person would type it."""
    with BrokerProcess(tmp_path / "d") as broker:
        program = shutil.which("nc")
        assert program is not None
        command = [program, "127.0.0.1", str(broker.port)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as nc:
            assert nc.stdin is not None
            assert nc.stdout is not None
            nc.stdin.write(EXAMPLE[0])
            nc.stdin.flush()
            said = b"".join(nc.stdout.readline() for _ in range(4))
            nc.stdin.write(EXAMPLE[1])
            nc.stdin.flush()
            said += nc.stdout.readline()
            nc.kill()
        assert ANSWERS.match(said), said


def test_the_worked_example_through_a_socket(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "d") as broker, socket.create_connection(("127.0.0.1", broker.port), 10) as wire:
        wire.sendall(EXAMPLE[0])
        reader = wire.makefile("rb")
        said = b"".join(reader.readline() for _ in range(4))
        wire.sendall(EXAMPLE[1])
        assert ANSWERS.match(said + reader.readline()), said
