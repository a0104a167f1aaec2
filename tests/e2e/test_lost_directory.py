"""A directory that is removed or replaced below a running broker ends it, with one line. ADR 0049."""

import asyncio
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import toymq
from tests.support.broker_process import BrokerProcess, Wire, run


def remove(data: Path) -> None:
    shutil.rmtree(data)


def replace(data: Path) -> None:
    data.rename(data.with_name("elsewhere"))
    data.mkdir()


def remove_lock(data: Path) -> None:
    (data / "LOCK").unlink()


@pytest.mark.parametrize(
    ("act", "path", "what"), [(remove, "", "removed"), (replace, "", "replaced"), (remove_lock, "/LOCK", "removed")]
)
def test_the_broker_ends_with_a_line_that_says_what_happened(
    tmp_path: Path, act: Callable[[Path], None], path: str, what: str
) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data, "--http", "127.0.0.1:0") as broker:
        with Wire(broker.port) as wire:
            wire.send(b"PUB orders 1\n\nx\n")
            wire.line()
            act(data)
            code, errors = broker.ended()
        assert code == 2
        line = errors.strip().splitlines()[-1]
        assert line.startswith(f"toymq: {data}{path} was {what} below the running broker")
        assert "Traceback" not in errors
    if act is replace:
        assert list(data.iterdir()) == [], "nothing is written into what is not its own"


def test_a_second_broker_is_refused_although_lock_was_removed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with BrokerProcess(data) as broker:
        os.kill(broker.pid, signal.SIGSTOP)  # it has not looked yet
        remove_lock(data)
        second = run("serve", "--data-dir", str(data), "--listen", "127.0.0.1:0")
        assert second.returncode == 2
        assert "is in use by" in second.stderr
        os.kill(broker.pid, signal.SIGCONT)
        assert broker.ended()[0] == 2
    with BrokerProcess(data) as broker:
        assert broker.stop() == 0


async def test_an_embedded_broker_does_not_begin_a_new_directory_in_its_place(tmp_path: Path) -> None:
    data = tmp_path / "queue"
    async with toymq.open(data, timeout_s=1) as mq:
        await mq.pub("orders", b"x")
        remove(data)
        ended = asyncio.wrap_future(mq._host.ended)
        async with asyncio.timeout(20):
            await ended
        assert not data.exists()
        with pytest.raises(toymq.ToymqError):
            await mq.pub("orders", b"y")
