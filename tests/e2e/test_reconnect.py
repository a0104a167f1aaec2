"""A broker that is killed and comes back under a client: nothing is lost, nothing is stored twice, no exception reaches the
user.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

import toymq
from tests.support.broker_process import BrokerProcess
from tests.support.moving import UnderLoad
from toymq import sync


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


class Outages:
    """Ends the broker after each so many receipts, and starts it again while the client retries."""

    def __init__(self, broker: BrokerProcess, end: Callable[[BrokerProcess], object], kills: int, every: int) -> None:
        self._broker = broker
        self._end = end
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
            await asyncio.to_thread(self._end, self._broker)
            await asyncio.to_thread(self._broker.start)
        await self._connected.wait()  # a connection that is not needed any more may be the last to come back


async def run_through_outages(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, messages: int, kills: int, keyed: bool,
    end: Callable[[BrokerProcess], object] = BrokerProcess.kill,
) -> None:  # fmt: skip
    caplog.set_level(logging.WARNING, "toymq")
    payloads = [b"message %d" % number for number in range(messages)]
    seen: dict[str, set[bytes]] = {"billing": set(), "audit": set()}
    with BrokerProcess(tmp_path / "d") as broker:
        outages = Outages(broker, end, kills, messages // (kills + 1))
        url = f"127.0.0.1:{broker.port}"
        async with toymq.connect(
            url, timeout_s=120, backoff_min_s=0.01, backoff_max_s=0.1, random=Random(7), on_event=outages.on_event
        ) as mq:

            async def produce() -> None:
                items = ((b"key-%d" % number, payload) for number, payload in enumerate(payloads)) if keyed else iter(payloads)
                async for _ in mq.pub_many("t", items):
                    outages.on_receipt()

            async def consume(consumer: str) -> None:
                async with mq.sub("t", consumer) as deliveries:
                    async for message in deliveries:
                        await message.ack()
                        seen[consumer].add(message.payload)
                        if len(seen[consumer]) == messages:
                            break

            async with asyncio.TaskGroup() as tasks:
                for coroutine in (outages.run(), produce(), *map(consume, seen)):  # the second consumer has its own connection
                    tasks.create_task(coroutine)
            assert await mq.offsets("t") == (0, messages), "each is stored exactly once"
            assert seen == {"billing": set(payloads), "audit": set(payloads)}
    assert len(warnings_of(caplog)) == kills, f"one warning an outage: {warnings_of(caplog)}"
    assert outages.events == ["Connected", *["Disconnected", "Connected"] * kills]


@pytest.mark.parametrize("keyed", [True, False], ids=["keys", "numbers"])
async def test_a_broker_that_is_killed_again_and_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, keyed: bool
) -> None:
    await run_through_outages(tmp_path, caplog, 5_000, 3, keyed)


async def test_a_broker_that_is_asked_to_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A broker that shuts down announces it (CLOSED, ERR SHUTTING_DOWN): no subscription ends, no publish fails."""
    await run_through_outages(tmp_path, caplog, 5_000, 2, keyed=False, end=BrokerProcess.stop)


async def run_through_kills_under_load(tmp_path: Path, kills: int) -> None:
    with BrokerProcess(tmp_path / "d") as broker:
        url = f"127.0.0.1:{broker.port}"
        async with (
            toymq.connect(url, timeout_s=120, backoff_min_s=0.01, backoff_max_s=0.1, random=Random(7)) as mq,
            UnderLoad(mq).running() as load,
        ):
            await load.all_move()
            for _ in range(kills):
                await asyncio.to_thread(broker.restart)
                await load.all_move()


async def test_every_subscription_moves_after_each_of_four_kills_under_load(tmp_path: Path) -> None:
    await run_through_kills_under_load(tmp_path, 4)


@pytest.mark.torture
async def test_every_subscription_moves_after_each_of_twelve_kills_under_load(tmp_path: Path) -> None:
    await run_through_kills_under_load(tmp_path, 12)


def test_the_blocking_client_survives_as_well(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    payloads = [b"message %d" % number for number in range(3_000)]
    with (
        BrokerProcess(tmp_path / "d") as broker,
        sync.connect(f"127.0.0.1:{broker.port}", backoff_min_s=0.01, backoff_max_s=0.1, random=Random(7)) as mq,
    ):
        for count, _ in enumerate(mq.pub_many("t", payloads), 1):
            if count in (1_000, 2_000):
                broker.restart()
        seen, restarted = set(), False
        with mq.sub("t", "c") as messages:
            for message in messages:
                message.ack()
                seen.add(message.payload)
                if len(seen) == 1_500 and not restarted:  # what comes next may have been seen
                    restarted = True
                    broker.restart()
                if len(seen) == 3_000:
                    break
        assert seen == set(payloads)
        assert mq.offsets("t") == (0, 3_000)
    assert len(warnings_of(caplog)) == 3


@pytest.mark.torture
@pytest.mark.parametrize("keyed", [True, False], ids=["keys", "numbers"])
async def test_ten_kills_under_fifty_thousand_messages(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, keyed: bool
) -> None:
    await run_through_outages(tmp_path, caplog, 50_000, 10, keyed)
