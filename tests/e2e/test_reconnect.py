"""A broker that is killed and comes back under a client: nothing is lost, nothing is stored twice, no exception reaches the
user.
"""

import asyncio
import logging
from pathlib import Path
from random import Random

import pytest

import toymq_client as toymq
from tests.support.broker_process import BrokerProcess


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


class Outages:
    """Kills the broker each time so many receipts came, and starts it again while the client tries."""

    def __init__(self, broker: BrokerProcess, kills: int, every: int) -> None:
        self._broker = broker
        self._kills = kills
        self._every = every
        self._receipts = 0
        self._due = asyncio.Semaphore(0)
        self._connected = asyncio.Event()
        self.events: list[str] = []

    def on_event(self, event: toymq.Connected | toymq.Disconnected) -> None:
        self.events.append(type(event).__name__)
        if isinstance(event, toymq.Connected):
            self._connected.set()

    def on_receipt(self) -> None:
        self._receipts += 1
        if self._receipts % self._every == 0:
            self._due.release()

    async def run(self) -> None:
        for _ in range(self._kills):
            await self._due.acquire()
            await self._connected.wait()  # killed before, it would be no outage that the client sees
            self._connected.clear()
            await asyncio.to_thread(self._broker.kill)
            await asyncio.to_thread(self._broker.start)


async def run_through_outages(tmp_path: Path, caplog: pytest.LogCaptureFixture, messages: int, kills: int, keyed: bool) -> None:
    caplog.set_level(logging.WARNING, "toymq_client")
    payloads = [b"message %d" % number for number in range(messages)]
    seen: set[bytes] = set()
    with BrokerProcess(tmp_path / "d") as broker:
        outages = Outages(broker, kills, messages // (kills + 1))
        url = f"127.0.0.1:{broker.port}"
        async with toymq.connect(
            url, timeout_s=120, backoff_min_s=0.01, backoff_max_s=0.1, random=Random(7), on_event=outages.on_event
        ) as mq:

            async def produce() -> None:
                items = ((b"key-%d" % number, payload) for number, payload in enumerate(payloads)) if keyed else iter(payloads)
                async for _ in mq.pub_many("t", items):
                    outages.on_receipt()

            async def consume() -> None:
                async with mq.sub("t", "c") as deliveries:
                    async for message in deliveries:
                        await message.ack()
                        seen.add(message.payload)
                        if len(seen) == messages:
                            break

            async with asyncio.TaskGroup() as tasks:
                for coroutine in (outages.run(), produce(), consume()):
                    tasks.create_task(coroutine)
            assert await mq.offsets("t") == (0, messages), "each is stored exactly once"
            assert seen == set(payloads)
    assert len(warnings_of(caplog)) == kills, f"one warning an outage: {warnings_of(caplog)}"
    assert outages.events == ["Connected", *["Disconnected", "Connected"] * kills]


@pytest.mark.parametrize("keyed", [True, False], ids=["keys", "numbers"])
async def test_a_broker_that_is_killed_again_and_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, keyed: bool
) -> None:
    await run_through_outages(tmp_path, caplog, 5_000, 3, keyed)


@pytest.mark.torture
@pytest.mark.parametrize("keyed", [True, False], ids=["keys", "numbers"])
async def test_ten_kills_under_fifty_thousand_messages(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, keyed: bool
) -> None:
    await run_through_outages(tmp_path, caplog, 50_000, 10, keyed)
