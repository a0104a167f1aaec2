"""Wire debug at both ends: a line for each frame with its mark and session, and no token; without the option no line."""

import logging
from pathlib import Path

import pytest

import toymq
from tests.support.in_process import InProcess, serving
from toymq_py.session import wire_log

BROKER = "toymq_py.wire"
CLIENT = "toymq.wire_log"


def lines(caplog: pytest.LogCaptureFixture, logger: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == logger]


async def a_visit(served: InProcess) -> None:
    """Publish, consume and ack, with a token although the broker requires none."""
    async with toymq.connect(f"toymq://s3cret@127.0.0.1:{served.port}", name="visitor", idempotent=False) as client:
        await client.pub("t", b"payload", key="k")
        async with client.sub("t", "c") as messages:
            async for message in messages:
                await message.ack(sync=True)
                break


async def test_both_ends_tell_the_same_story(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, BROKER)
    caplog.set_level(logging.DEBUG, CLIENT)
    async with serving(tmp_path / "d") as served:
        await a_visit(served)
    at_broker, at_client = lines(caplog, BROKER), lines(caplog, CLIENT)
    number = at_client[0].split()[0]
    sent = [line.removeprefix(f"{number} > ") for line in at_client if line.startswith(f"{number} > ")]
    assert sent[:2] == ["HELLO 1 auth=*** name=visitor", "PUB t k 7"]
    assert sent[-1] == "QUIT"
    assert [line.removeprefix("1 < ") for line in at_broker if line.startswith("1 < ")] == sent
    came = [line.removeprefix(f"{number} < ") for line in at_client if line.startswith(f"{number} < ")]
    assert [line.removeprefix("1 > ") for line in at_broker if line.startswith("1 > ")] == came
    assert at_broker[0].startswith("1 = open, from 127.0.0.1:")
    assert [line for line in at_broker if line.startswith("1 x ")] == ["1 x closed"]
    assert "s3cret" not in "".join(at_broker + at_client)
    assert "payload" not in "".join(line for line in at_broker + at_client if "max_payload" not in line)
    assert {record.session for record in caplog.records if record.name == BROKER} == {1}  # type: ignore[attr-defined]


async def test_it_begins_and_ends_while_a_session_lasts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with serving(tmp_path / "d") as served:
        connection = await served.connect()
        assert await connection.ask(b"PING\n") == b"PONG"
        assert lines(caplog, BROKER) == []
        caplog.set_level(logging.DEBUG, BROKER)
        served.server.debug_wire()
        refused = await connection.ask(b"HELLO 1 auht=s3cret\n")
        assert refused == b"ERR BAD_ARGUMENT unknown option auht: this command takes auth, name"
        assert lines(caplog, BROKER) == ["1 < (refused: BAD_ARGUMENT)", "1 > ERR BAD_ARGUMENT"]
        caplog.set_level(logging.INFO, BROKER)
        served.server.debug_wire()
        caplog.clear()
        assert await connection.ask(b"PING\n") == b"PONG"
        assert lines(caplog, BROKER) == []


async def test_off_it_is_not_even_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the option wire debug has no cost: none of its code is ever called."""

    def never(*_: object) -> None:
        raise AssertionError("wire debug is off")

    for name in ("say", "received", "written"):
        monkeypatch.setattr(wire_log.WireLog, name, never)
    for name in ("note", "received", "sent"):
        monkeypatch.setattr(toymq.wire_log.Wire, name, never)
    async with serving(tmp_path / "d") as served:
        await a_visit(served)
