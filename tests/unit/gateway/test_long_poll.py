"""Polls that wait."""

import asyncio

import pytest

from tests.support.http_rig import HttpRig, gateway, ids, listening, refused
from tests.support.sim_disk import SimDisk

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
        assert ids(await rig.lease("t", wait_s=5)) == [(0, 1)], "it was not leased to the one who went"
