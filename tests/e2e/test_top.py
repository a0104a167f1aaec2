"""`toymqctl top` against a real broker, and without its extra."""

import subprocess
import sys
from pathlib import Path

from textual.widgets import DataTable

from tests.support.broker_process import TIMEOUT_S, environment
from tests.support.in_process import serving
from toymq_client.url import parse_url
from toymqctl.broker import Broker
from toymqctl.top.feed import FETCH_COUNT, BrokerFeed
from toymqctl.top.screen import Top


async def test_it_shows_a_brokers_figures(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        wire = await served.connect()
        assert await wire.ask(b"SUB orders billing window=1\n") == b"OK 1"
        assert await wire.ask(b"PUB orders - 6\npoison\n") == b"OK 0"
        assert (await wire.message())[2] == b"poison"
        for _ in range(3):
            wire.send(b"PUB orders - 1\nx\n")
        wire.send(b"NACK orders billing 0 dead=1 reason=rejected\n")
        watching = await served.connect()
        assert await watching.ask(b"SUB orders.dlq watch\n") == b"OK 1"
        await watching.message()  # the letter is there
        async with BrokerFeed(Broker(parse_url(f"toymq://127.0.0.1:{served.port}"))) as feed:
            app = Top(feed, every_s=None)
            async with app.run_test(size=(120, 20)) as pilot:
                await app.poll()
                table = app.query_one(DataTable)
                shown = [[str(cell) for cell in table.get_row_at(row)] for row in range(2)]
                assert [(row[0], row[3], row[5], row[6], row[7]) for row in shown] == [
                    ("orders", "3", "1", "1", "4"), ("orders.dlq", "1", "1", "0", "1")
                ]  # fmt: skip
                await pilot.press("d")
                await app.workers.wait_for_complete()
                await pilot.pause()
                letter = [str(cell) for cell in table.get_row_at(0)]
                assert (letter[2], letter[4], letter[-1]) == ("billing", "rejected", "poison")


async def test_the_newest_of_a_topic_come_newest_first(tmp_path: Path) -> None:
    async with serving(tmp_path) as served:
        wire = await served.connect()
        for number in range(FETCH_COUNT + 50):
            wire.send(b"PUB t - 3\n%03d\n" % number)
        wire.send(b"PING\n")
        while await wire.line() != b"PONG":
            pass
        async with BrokerFeed(Broker(parse_url(f"toymq://127.0.0.1:{served.port}"))) as feed:
            assert feed.trouble is None
            newest = await feed.newest("t", FETCH_COUNT + 20)
    assert [row.payload for row in newest] == [b"%03d" % number for number in range(FETCH_COUNT + 49, 29, -1)]


def toymqctl(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", f"{program}; from toymqctl.cli import main; main()", *arguments]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def test_without_the_extra_one_line_says_so() -> None:
    done = toymqctl("import sys; sys.modules['textual'] = None", "top")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("toymqctl: top needs textual")
    assert "pip install 'toymq_py[tui]'" in line


def test_without_a_broker_one_line_says_so() -> None:
    done = toymqctl("pass", "--url", "toymq://127.0.0.1:1", "top")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "no broker at 127.0.0.1:1" in line


def test_other_commands_pay_nothing_for_it() -> None:
    program = "import sys, toymqctl.cli; print({'asyncio', 'textual', 'rich'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
