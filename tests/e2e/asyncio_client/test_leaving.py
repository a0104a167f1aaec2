"""Draining and closing."""

import asyncio
import signal
from contextlib import suppress
from pathlib import Path

import pytest

import toymq
from tests.support.broker_process import BrokerProcess
from tests.support.fake_broker import Peer, following
from tests.support.in_process import InProcess
from tests.support.quick_client import code_of, connect
from toymq import Client, ClientClosed, Message


async def test_drain_waits_for_handlers_and_gives_the_rest_back(broker: InProcess, mq: Client) -> None:
    await mq.pub_many("t", [b"%d" % n for n in range(10)])
    messages = await mq.sub("t", "c")
    running = [await messages.next(5) for _ in range(2)]

    async def handle(message: Message) -> None:
        await mq.ping()
        await message.ack()

    async with asyncio.TaskGroup() as tasks:
        draining = tasks.create_task(mq.drain(5))
        for message in running:
            tasks.create_task(handle(message))
    assert draining.result()
    assert [message async for message in messages] == []
    (found,) = (await mq.describe("t"))["consumers"]
    assert (found["last_acked"], found["ready"], found["inflight"], found["sessions"]) == (1, 8, 0, 0)
    async with mq.sub("t", "c") as later:
        assert (await later.next(5)).id == 2, "after a drain the client works on"


async def test_drain_says_when_a_handler_was_too_slow(mq: Client) -> None:
    await mq.pub("t", b"x")
    messages = await mq.sub("t", "c")
    await messages.next(5)
    assert not await mq.drain(0.02)
    assert (await mq.describe("t"))["consumers"][0]["ready"] == 1


async def test_a_drain_ends_in_time_although_the_broker_is_silent(tmp_path: Path) -> None:
    """Found: a drain waited 30 s for the answer to UNSUB, and a service that had 10 s to end was killed."""
    with BrokerProcess(tmp_path / "d") as broker:
        async with toymq.connect(f"127.0.0.1:{broker.port}") as mq:
            await mq.pub("t", b"x")
            messages = await mq.sub("t", "c")
            await (await messages.next(5)).ack()
            broker.signal(signal.SIGSTOP)
            try:
                async with asyncio.timeout(10):
                    await mq.drain(0.05)
                    assert [message async for message in messages] == []
            finally:
                broker.signal(signal.SIGCONT)


@pytest.mark.parametrize("way", ["block", "drain", "client", "pattern"])
async def test_a_message_that_no_code_saw_does_not_become_a_dead_letter(broker: InProcess, mq: Client, way: str) -> None:
    """Found: twenty subscriptions that were opened and closed made a dead letter of a message that no handler saw."""
    await mq.create("t", {"max_attempts": 3})
    await mq.pub_many("t", [b"0", b"1"])
    for _ in range(5):
        async with toymq.connect(f"127.0.0.1:{broker.port}") as worker:
            messages = await worker.sub("*" if way == "pattern" else "t", "c")
            while not messages._feed.arrived:
                await worker.ping()
            if way == "drain":
                assert await worker.drain(5)
            elif way != "client":
                await messages.close()
    (found,) = (await mq.describe("t"))["consumers"]
    assert (found["ready"], found["attempts_max"]) == (2, 0)
    for _ in range(3):
        with suppress(ZeroDivisionError):
            async with mq.sub("t", "c") as messages:
                assert (await messages.next(5)).payload == b"0"
                raise ZeroDivisionError
    async with mq.sub("t", "c") as messages:
        assert (await messages.next(5)).payload == b"1", "poison that ends the subscription comes to an end"


async def test_a_message_that_kills_its_worker_takes_no_acked_ones_along(broker: InProcess, mq: Client) -> None:
    """Found: the acks before the fatal message had not been sent, so each acked message was processed three times and became a
    dead letter first."""
    await mq.create("t", {"max_attempts": 3})
    await mq.pub_many("t", [b"0", b"1", b"2", b"kills", b"4"])
    deaths, handled = 0, list[bytes]()
    while b"4" not in handled:
        worker = await toymq.connect(f"127.0.0.1:{broker.port}")
        messages = await worker.sub("t", "c")
        async for message in messages:
            with suppress(toymq.ClientClosed):  # raised where the killed one would ack
                async with message.process():
                    if message.payload == b"kills":
                        deaths += 1
                        worker._link.abort()  # nothing more is sent
                    else:
                        handled.append(message.payload)
            if message.payload in (b"kills", b"4"):
                await worker.close()
                break
        while (await mq.describe("t"))["consumers"][0]["sessions"]:
            await mq.ping()
    async with mq.sub("t.dlq", "audit") as letters:
        assert (await letters.next(5)).payload == b"kills"
    assert (deaths, (await mq.describe("t"))["dead_lettered_total"]) == (4, 1)
    assert max(map(handled.count, handled)) == 2


async def test_leaving_sends_what_was_acked(broker: InProcess) -> None:
    async with toymq.connect(f"127.0.0.1:{broker.port}") as mq:
        await mq.pub("t", b"x")
        messages = await mq.sub("t", "c")
        await (await messages.next(5)).ack()
        await mq.close()
        await mq.close()
        with pytest.raises(toymq.ClientClosed):
            await mq.ping()
        with pytest.raises(toymq.ClientClosed):
            await messages.next(1)
    async with toymq.connect(f"127.0.0.1:{broker.port}") as mq:
        assert (await mq.describe("t"))["consumers"][0]["backlog"] == 0


async def test_close_does_not_hang_on_a_broker_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toymq.link.GOODBYE_S", 0.02)

    async def script(peer: Peer) -> None:
        await peer.greet()
        await peer.gone()

    async with following(script) as url:
        mq = await connect(url)
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(code_of(mq.pub("t", b"x")))
            await asyncio.sleep(0)
            await mq.close()
        assert waiting.result() == "CLIENT_CLOSED"


async def test_what_is_said_of_a_message_after_the_client_closed_is_an_error(broker: InProcess) -> None:
    """Found by a trial: ``ack()`` and ``nack()`` were silent, and the message came again."""
    mq = await toymq.connect(f"127.0.0.1:{broker.port}")
    await mq.pub("late", b"x")
    subscription = await mq.sub("late", "c", auto_ack=True)
    message = await subscription.next(5)
    await mq.close()
    for say in (message.ack, lambda: message.ack(sync=True), message.nack, lambda: message.nack(5, reason="no")):
        with pytest.raises(ClientClosed):
            await say()
    with pytest.raises(ClientClosed):
        async with message.process():
            pass
    with pytest.raises(ClientClosed):
        await subscription.__aexit__(None, None, None)  # auto_ack would ack the last one here
    with pytest.raises(ZeroDivisionError):
        async with message.process():
            raise ZeroDivisionError("the handler's own error goes on")
    assert not await message.extend()
