"""Long polls: requests that wait for messages."""

import asyncio

import pytest

from tests.support.http_rig import HttpRig, gateway, ids, listening, refused
from tests.support.sim_disk import SimDisk
from toymq_py.errors import QueueFull
from toymq_py.gateway.long_poll import LongPoll
from toymq_py.subscription.pattern_poll import PART_COST_BYTES

DIR = "/data/d"


async def test_a_poll_waits_for_the_next_message(rig: HttpRig) -> None:
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(rig.lease("t", wait_s=10))
        await rig.until_polled("t")
        await rig.publish("t", "a")
    assert ids(waiting.result()) == [(0, 1)]


async def test_a_poll_of_nothing_ends_in_time_and_loses_nothing(rig: HttpRig) -> None:
    assert await rig.lease("t", wait_s=0.02) == []
    await rig.publish("t", "a")
    assert ids(await rig.lease("t")) == [(0, 1)], "the next message goes to whoever is there"


async def test_a_refusal_is_the_same_whether_one_waits_or_not(fs: SimDisk) -> None:
    async with gateway(DIR, fs=fs, max_consumers=1, max_topics=1) as rig:
        assert await rig.lease("t", wait_s=0.001) == []
        for wait_s in (0, 1):
            refused(await rig.ask("GET", f"/v1/topics/t/messages?consumer=d&wait_s={wait_s}"), 409, "TOO_MANY_CONSUMERS")
            refused(await rig.ask("GET", f"/v1/topics/u/messages?consumer=c&wait_s={wait_s}"), 409, "TOO_MANY_TOPICS")


@pytest.mark.parametrize("path", ["/v1/topics/t", "/v1/topics/t/consumers/c"])
async def test_what_is_deleted_under_a_poll_is_a_refusal(rig: HttpRig, path: str) -> None:
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(rig.ask("GET", "/v1/topics/t/messages?consumer=c&wait_s=10"))
        await rig.until_polled("t")
        assert (await rig.ask("DELETE", path)).status_code == 204
    refused(waiting.result(), 404, "NO_SUCH_CONSUMER" if "consumers" in path else "NO_SUCH_TOPIC")


async def test_a_shutdown_ends_waits(rig: HttpRig) -> None:
    assert rig.gateway is not None
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(rig.lease("t", wait_s=60))
        await rig.until_polled("t")
        rig.gateway.waiting.stop()
    assert waiting.result() == []


async def test_who_went_away_while_waiting_gets_nothing(fs: SimDisk) -> None:
    async with listening(DIR, fs=fs) as rig:
        _, writer = await asyncio.open_connection("127.0.0.1", rig.port)
        writer.write(b"GET /v1/topics/t/messages?consumer=c&wait_s=60 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await rig.until_polled("t")
        writer.close()
        await writer.wait_closed()
        assert ids(await rig.lease("t", wait_s=0.05)) == []  # the other is gone by now
        await rig.publish("t", "a")
        assert ids(await rig.lease("t", wait_s=5)) == [(0, 1)], "it was not leased to the request that went"


async def test_wait_s_is_kept_while_the_disk_writes_that_a_consumer_is_new(
    rig: HttpRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by an attack: over a thousand topics the answer came after 8 s, with a wait of 0.1 s."""
    await rig.publish("a.x", "a")
    monkeypatch.setattr(rig.broker._flusher, "flush", lambda source, done: None)
    assert ids(await rig.lease("a.*", wait_s=0.02)) == [(0, 1)], "a new consumer begins at the first id in any case"


async def test_what_a_poll_of_a_pattern_holds_counts_for_its_client(rig: HttpRig) -> None:
    for n in range(20):
        await rig.publish(f"a.{n}", "a")
    assert rig.gateway is not None
    polling = LongPoll(rig.broker, rig.gateway.waiting, "a.*", "c", visibility_s=None)
    charged: list[int] = []

    def charge(size: int) -> QueueFull:
        charged.append(size)
        return QueueFull("too much is held")

    polling.charge = charge
    with pytest.raises(QueueFull):
        await polling.poll(1, 1000, 1)
    assert charged == [20 * PART_COST_BYTES]
    assert rig.broker.topic("a.1").channel("c").takers == 0
