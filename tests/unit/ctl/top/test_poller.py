"""The data source of `toymqctl top`, on a real broker."""

from pathlib import Path

from tests.support.in_process import serving
from toymq.url import parse_url
from toymqctl.broker import Broker
from toymqctl.top.poller import FETCH_COUNT, BrokerFeed


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
