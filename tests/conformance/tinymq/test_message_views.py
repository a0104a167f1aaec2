"""Filters on fields of the payload and on headers. ``test_messages.py`` tests peeks."""

import asyncio
import json

from tests.support.http_rig import HttpRig
from tests.support.tinymq_client import PAID, get, post, publish, texts

DIALECT = "tinymq"


async def test_a_filter_looks_at_members_of_the_payload(rig: HttpRig) -> None:
    found = [{"status": "paid", "n": 1}, {"status": "open"}, [1], {"status": ["paid"]}, {"status": "paid", "n": 1.5}]
    await publish(rig, "t", *found, b"no JSON", b'{"status": "paid"', {"n": 10_000_000}, {"n": True}, {"n": None}, {"n": "1"})
    shown = (await get(rig, f"/consume/t?{PAID}&limit=10"))[1]
    assert [json.loads(text) for text in texts(shown)] == [found[0], found[4]]
    for value, count in (("1", 2), ("1.5", 1), ("10000000", 1), ("1e%2B07", 1), ("true", 1), ("null", 1), ("[1]", 0)):
        _, shown = await get(rig, f"/consume/t?filter_key=n&filter_val={value}&limit=10")
        assert len(shown or []) == count, value
    assert rig.broker.topics["t"].consumers.get("tinymq") is None, "nothing is consumed"


async def test_a_filter_with_auto_ack_takes_what_it_shows_and_leaves_the_rest(rig: HttpRig) -> None:
    """The original drops the rest; a program that asks again and again must not get the same one for ever."""
    await publish(rig, "t", {"status": "open"}, {"status": "paid", "n": 1}, {"status": "paid", "n": 2})
    for n in (1, 2):
        _, found = await get(rig, f"/consume/t?{PAID}&auto_ack=true")
        assert json.loads(found["payload_text"])["n"] == n
    assert await get(rig, f"/consume/t?{PAID}&auto_ack=true") == (204, None)
    assert json.loads((await get(rig, "/consume/t"))[1]["payload_text"]) == {"status": "open"}


async def test_a_filter_shows_nothing_that_another_worker_has_or_that_is_not_due(rig: HttpRig) -> None:
    await publish(rig, "t", {"status": "paid"}, {"status": "paid"})
    await publish(rig, "t", {"status": "paid"}, delay="1h")
    _, leased = await get(rig, "/consume/t")
    _, shown = await get(rig, f"/consume/t?{PAID}&limit=10")
    assert len(shown) == 1
    assert shown[0]["id"] != leased["id"]
    assert (await post(rig, f"/ack/t/{shown[0]['id']}"))[0] == 200


async def test_a_filter_waits_for_what_it_wants(rig: HttpRig) -> None:
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(get(rig, f"/consume/t?{PAID}&auto_ack=true&timeout=30s"))
        await rig.until(lambda: rig.gateway is not None and len(rig.gateway.waiting) == 1)
        await publish(rig, "t", {"status": "open"})
        assert not waiting.done()
        await publish(rig, "t", {"status": "paid"})
    assert json.loads(waiting.result()[1]["payload_text"]) == {"status": "paid"}
    assert await get(rig, f"/consume/t?{PAID}&timeout=10ms") == (204, None)
