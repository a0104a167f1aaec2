"""An unchanged broker reaches every named crash point, is killed there, and starts again with everything."""

import asyncio
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.broker_process import BrokerProcess, Wire
from toymq_chaos.fault_injection import PLACES, Point
from toymq_chaos.supervisor import BrokerFailed, Supervisor
from toymq_py.storage.fs import RealFileSystem
from toymq_py.storage.offline.verify import verify

OPTIONS = ["--min-free-bytes", "0", "--segment-bytes", "64KiB", "--retain-acked-for", "0"]
BODY = bytes(5000)
BEFORE = 30
NTH = {"commit": 10}
"""The first are recovery's."""
DAY_NS = 86_400_000_000_000


def broker_of(tmp_path: Path) -> Supervisor:
    return Supervisor(tmp_path / "d", tmp_path / "log", tmp_path / "clock", OPTIONS)


def work(port: int, rounds: int) -> int:
    """Publish, consume and ack until the broker is gone. Returns: how many messages were answered OK."""
    answered = 0
    with suppress(OSError, AssertionError), Wire(port) as wire:
        wire.ask(b"SUB t c\n")
        for _ in range(rounds):
            wire.send(b"PUB t - %d\n%b\n" % (len(BODY), BODY))
            while (line := wire.line()).startswith(b"MSG"):
                wire.read(int(line.split()[6]) + 1)
            if not line.startswith(b"OK"):
                break
            answered += 1
            wire.send(b"ACK t c 0-%d\n" % answered)
            while (line := wire.line()).startswith(b"MSG"):
                wire.read(int(line.split()[6]) + 1)
    return answered


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a broker that was killed with ``BEFORE`` messages."""
    path = tmp_path_factory.mktemp("killed") / "d"
    with BrokerProcess(path, *OPTIONS) as broker:
        assert work(broker.port, BEFORE) == BEFORE
        broker.kill()
    return path


@pytest.mark.parametrize(
    ("place", "after"),
    [
        pytest.param(place, after, id=f"{place}-{'after' if after else 'before'}", marks=marks)
        for number, place in enumerate(PLACES)
        for after, marks in ((number % 2 == 1, ()), (number % 2 == 0, pytest.mark.torture))
    ],
)
async def test_the_broker_dies_at_its_point_and_comes_back(killed: Path, tmp_path: Path, place: str, after: bool) -> None:
    shutil.copytree(killed, tmp_path / "d")
    broker, before = broker_of(tmp_path), BEFORE
    if await broker.come_up(Point(place, NTH.get(place, 1), after)):
        assert place != "recovery"
        before += await asyncio.to_thread(work, broker.port, 100_000)
        async with asyncio.timeout(30):
            assert await broker.ended() == -signal.SIGKILL
    else:
        # A start writes what it found, removes what is over and seals: on a busy machine before it says that it is ready.
        assert place != "commit", "it died while it started"

    assert await broker.come_up(None)
    with Wire(broker.port) as wire:
        following = int(wire.ask(b"OFFSETS t\n").split()[3])
    assert before <= following <= before + 1, "what was answered is there, and at most the one in flight"
    broker.signal(signal.SIGTERM)
    assert await broker.ended() == 0
    assert [report for report in verify(RealFileSystem(), str(tmp_path / "d")) if report.damaged] == []


async def test_a_clock_that_is_set_is_the_brokers_own(tmp_path: Path) -> None:
    broker = broker_of(tmp_path)
    assert await broker.come_up(None)
    stamps = []
    with Wire(broker.port) as wire:
        wire.ask(b"SUB t c\n")
        for days in (0, -1, 2):
            broker.set_clock(days * DAY_NS)
            wire.send(b"PUB t - 1\nx\n")
            lines = [wire.line()]
            while not lines[-1].startswith(b"MSG"):
                lines.append(wire.line())
            stamps.append(int(lines[-1].split()[4]))
            wire.read(2)
            if len(lines) == 1:
                wire.line()  # the OK came behind the delivery
    broker.signal(signal.SIGKILL)
    await broker.ended()
    assert 0 <= stamps[1] - stamps[0] < DAY_NS / 2, "set back: stamps of a log do not fall"
    assert 1.5 * DAY_NS < stamps[2] - stamps[0] < 2.5 * DAY_NS


async def test_a_broker_that_cannot_start_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "d").write_text("a file")
    broker = broker_of(tmp_path)
    with pytest.raises(BrokerFailed, match=r"the broker did not start: toymq: .*/d"):
        await broker.come_up(None)
