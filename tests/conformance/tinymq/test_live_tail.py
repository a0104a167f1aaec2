"""``/stream``: server-sent events of what is published from now on."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.support.http_rig import TIMEOUT_S, HttpRig
from tests.support.tinymq_client import PAID, publish

DIALECT = "tinymq"


@asynccontextmanager
async def events(rig: HttpRig, path: str) -> AsyncIterator[AsyncIterator[Any]]:
    """Yield the data of server-sent events."""
    async with rig.client.stream("GET", path) as answer:
        assert answer.status_code == 200

        async def data() -> AsyncIterator[Any]:
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    yield json.loads(line[6:])

        yield data()


async def test_a_stream_says_first_that_it_is_connected(listener: HttpRig) -> None:
    """``tmq tail`` waits for this event; all that is published after it arrives."""
    async with asyncio.timeout(TIMEOUT_S), events(listener, "/stream/a/b") as found:
        assert await anext(found) == {"status": "connected", "topic": "a/b"}
        (msg_id,) = await publish(listener, "a/b", b"x")
        message = await anext(found)
    assert (message["id"], message["topic"], base64.b64decode(message["payload"])) == (msg_id, "a/b", b"x")


async def test_a_stream_of_a_glob_has_topics_to_come_and_a_filter(listener: HttpRig) -> None:
    await publish(listener, "orders/eu", {"status": "paid"})
    async with asyncio.timeout(TIMEOUT_S), events(listener, f"/stream/orders/*?{PAID}") as found:
        assert (await anext(found))["status"] == "connected"
        await publish(listener, "orders/eu", {"status": "open"}, {"status": "paid", "n": 1})
        await publish(listener, "orders/us/ny", {"status": "paid", "n": 2})
        await publish(listener, "bills", {"status": "paid", "n": 3})
        await publish(listener, "orders/eu", {"status": "paid", "n": 4})
        shown = [await anext(found) for _ in range(3)]
    assert sorted((each["topic"], json.loads(each["payload_text"])["n"]) for each in shown) == [
        ("orders.eu", 1), ("orders.eu", 4), ("orders.us.ny", 2),
    ]  # fmt: skip


async def test_a_stream_ends_with_its_topic(listener: HttpRig) -> None:
    watchers = dict(listener.broker._subscriptions._watchers)
    async with asyncio.timeout(TIMEOUT_S), events(listener, "/stream/t") as found:
        await anext(found)
        await publish(listener, "t", {"n": 1})
        assert "payload" in str(await anext(found))
        assert (await listener.ask("DELETE", "/api/queues/delete?queue=t")).status_code == 200
        assert [each async for each in found] == []
    assert listener.broker._subscriptions._watchers == watchers
