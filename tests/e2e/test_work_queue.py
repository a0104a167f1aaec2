"""The promise of a work queue: workers and the broker are killed, and every message is done, by one worker at a time, with
mode=keyed in the order of each key."""

import asyncio
import logging
import signal
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import defaultdict
from collections.abc import Coroutine
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

import toymq
from tests.support.broker_process import TIMEOUT_S, BrokerProcess, environment, run
from toymq import Client, Receipt
from toymq_py.consumer_options import Mode
from toymq_py.errors import NoSuchTopic

TOPIC, CONSUMER = "jobs", "workers"
NOTICED_NS = 1_000_000_000
"""A message may be handed out of a client's buffer so long after its broker was killed, and is not that one's any more."""


@dataclass(frozen=True, slots=True)
class Handed:
    at_ns: int
    worker: int
    attempt: int


@dataclass(slots=True)
class Shop:
    """The workers, each replaced when it is killed, and all their output."""

    port: int
    mode: Mode = "shared"
    handed: dict[int, list[Handed]] = field(default_factory=lambda: defaultdict(list))
    done: dict[int, int] = field(default_factory=dict)
    """When each message was done first, in nanoseconds."""
    died_ns: dict[int, int] = field(default_factory=dict)
    living: dict[int, Process] = field(default_factory=dict)
    ready: set[int] = field(default_factory=set)
    closing: bool = False
    _more: asyncio.Event = field(default_factory=asyncio.Event)

    async def keep_a_worker(self, number: int) -> None:
        """Run a worker, and a new one whenever it is killed. ``number``: of the first one; its successors count on."""
        code = -signal.SIGKILL
        while code == -signal.SIGKILL and not self.closing:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.support.queue_worker", str(self.port), TOPIC, CONSUMER, self.mode,
                env=environment(), stdin=PIPE, stdout=PIPE,
            )  # fmt: skip
            self.living[number] = process
            assert process.stdout is not None
            async for line in process.stdout:
                if line.endswith(b"\n"):
                    self._note(number, line.split())
            del self.living[number]
            code = await process.wait()
            assert code in (0, -signal.SIGKILL), f"worker {number} ended with {code}"
            number += 1000

    def _note(self, worker: int, words: list[bytes]) -> None:
        if words[0] == b"got":
            self.handed[int(words[1])].append(Handed(int(words[3]), worker, int(words[2])))
        elif words[0] == b"ready":
            self.ready.add(worker)
        elif words[0] == b"done":
            msg_id, at_ns = int(words[1]), int(words[2])
            self.done[msg_id] = min(at_ns, self.done.get(msg_id, at_ns))
            self._more.set()

    async def until_done(self, count: int) -> None:
        async with asyncio.timeout(TIMEOUT_S + count / 20):
            while len(self.done) < count:
                self._more.clear()
                await self._more.wait()

    def kill_a_worker(self, random: Random) -> None:
        number = random.choice(sorted(self.ready & self.living.keys() or self.living))  # a new one has nothing to lose
        self.died_ns[number] = time.perf_counter_ns()
        self.living[number].kill()

    def close(self) -> None:
        self.closing = True
        for process in self.living.values():
            assert process.stdin is not None
            process.stdin.close()


def check(shop: Shop, broker_died_ns: list[int]) -> int:
    """Check that each message is with one worker at a time: it goes to another only when that worker, or the broker, was killed
    meanwhile (the visibility timeout is longer than the test). Returns: how often a message went to another worker."""
    again = 0
    for msg_id, unordered in shop.handed.items():
        ordered = sorted(unordered, key=lambda one: one.at_ns)
        for before, after in pairwise(ordered):
            again += 1
            broker_died = any(before.at_ns - NOTICED_NS <= at <= after.at_ns for at in broker_died_ns)
            died = shop.died_ns.get(before.worker)
            assert broker_died or (died is not None and died <= after.at_ns), f"{msg_id}: {before} and {after} at a time"
            assert broker_died or after.attempt >= before.attempt, f"{msg_id}: {after.attempt} after {before.attempt}"
        kills = [*broker_died_ns, *shop.died_ns.values()]
        for one in ordered:
            assert 1 <= one.attempt <= 1 + sum(at <= one.at_ns for at in kills), f"{msg_id}: attempt {one.attempt}"
    return again


def check_order(shop: Shop, keys: int) -> None:
    """Check that no message goes to a worker before the last one of its key (its id modulo ``keys``) was done, whatever is
    killed."""
    for msg_id, handed in shop.handed.items():
        before = msg_id - keys
        first_ns = min(one.at_ns for one in handed)
        assert before < 0 or shop.done[before] <= first_ns, f"{msg_id} was handed out before {before} was done"


async def until_acked(mq: Client) -> None:
    """Wait until all is acked: when a kill of the broker loses an ack, its message is redelivered and a worker has to be there
    for it."""
    async with asyncio.timeout(TIMEOUT_S):
        while any(consumer["backlog"] for consumer in (await mq.describe(TOPIC))["consumers"]):  # noqa: ASYNC110 (only the broker knows)
            await asyncio.sleep(0.05)


async def work_off(tmp_path: Path, *, workers: int, kills: int, count: int, seed: int, keys: int | None = None) -> int:
    """Let workers handle ``count`` messages; every third kill is the broker's. With ``keys``, in the order of so many keys.
    Returns: how often a message was delivered once more."""
    random = Random(seed)
    broker_died_ns: list[int] = []
    with BrokerProcess(tmp_path / "d") as broker:
        shop = Shop(broker.port, "shared" if keys is None else "keyed")

        async def publish(mq: Client) -> None:
            def pub(n: int) -> Coroutine[object, object, Receipt]:
                headers = None if keys is None else {"toymq-group": f"key {n % keys}"}
                return mq.pub(TOPIC, b"%d" % n, key=f"job-{n}", headers=headers)

            for first in range(0, count, 64):
                ids = range(first, min(first + 64, count))
                receipts = await asyncio.gather(*map(pub, ids))
                assert [receipt.msg_id for receipt in receipts] == list(ids)

        async with toymq.connect(f"127.0.0.1:{broker.port}", backoff_max_s=0.2, timeout_s=120) as mq:
            async with asyncio.TaskGroup() as tasks:
                for number in range(workers):
                    tasks.create_task(shop.keep_a_worker(number))
                tasks.create_task(publish(mq))
                try:
                    for kill in range(1, kills + 1):
                        await shop.until_done(count * kill // (kills + 1))
                        if kill % 3 == 0:
                            broker_died_ns.append(time.perf_counter_ns())
                            await asyncio.to_thread(broker.restart)
                        else:
                            shop.kill_a_worker(random)
                    await shop.until_done(count)
                    await until_acked(mq)
                except BaseException:
                    for process in shop.living.values():
                        process.kill()
                    raise
                shop.close()
            assert shop.done.keys() == set(range(count))
            assert await mq.offsets(TOPIC) == (0, count), "each was stored once"
            (consumer,) = (await mq.describe(TOPIC))["consumers"]
            assert (consumer["backlog"], consumer["inflight"]) == (0, 0), "and each is acked"
            with pytest.raises(NoSuchTopic):
                await mq.offsets(f"{TOPIC}.dlq")
        again = check(shop, broker_died_ns)
        if keys is not None:
            check_order(shop, keys)
    assert run("verify", str(tmp_path / "d")).returncode == 0
    return again


async def test_workers_and_broker_are_killed_and_every_job_is_done(tmp_path: Path) -> None:
    assert await work_off(tmp_path, workers=3, kills=3, count=240, seed=1) > 0, "a kill that went unnoticed proves nothing"


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(3))
async def test_eight_workers_under_twenty_kills(tmp_path: Path, seed: int) -> None:
    assert await work_off(tmp_path, workers=8, kills=20, count=8000, seed=seed) > 20


async def test_workers_and_broker_are_killed_and_the_order_of_each_key_is_kept(tmp_path: Path) -> None:
    assert await work_off(tmp_path, workers=3, kills=4, count=240, seed=2, keys=12) > 0, "no kill was noticed"


@pytest.mark.torture
async def test_the_order_of_each_key_under_a_hundred_kills(tmp_path: Path) -> None:
    assert await work_off(tmp_path, workers=8, kills=100, count=12_000, seed=3, keys=40) > 100


def test_the_check_finds_a_key_out_of_order() -> None:
    shop = Shop(0, done={0: 10, 1: 20})
    shop.handed = {0: [Handed(1, 0, 1)], 1: [Handed(2, 1, 1)], 2: [Handed(10, 0, 1)]}
    check_order(shop, 2)
    shop.handed[2].append(Handed(9, 1, 1))
    with pytest.raises(AssertionError, match="2 was handed out before 0"):
        check_order(shop, 2)


def test_the_check_finds_a_message_with_two_workers() -> None:
    """A check that cannot fail would prove nothing."""
    shop = Shop(0)
    shop.handed[7] = [Handed(at_ns=5, worker=0, attempt=1), Handed(at_ns=9, worker=1, attempt=2)]
    for died, broker, fails in (({}, [], True), ({0: 10}, [], True), ({1: 7}, [], True), ({0: 7}, [], False), ({}, [7], False)):
        shop.died_ns = died
        if fails:
            with pytest.raises(AssertionError, match="7: "):
                check(shop, broker)
        else:
            assert check(shop, broker) == 1
    shop.handed[7] = [Handed(at_ns=5, worker=0, attempt=2), Handed(at_ns=9, worker=1, attempt=1)]
    shop.died_ns = {0: 7}
    with pytest.raises(AssertionError, match="1 after 2"):
        check(shop, [])


async def test_a_message_that_kills_the_broker_at_once_becomes_a_dead_letter(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Found: the broker died before the attempt was stored, so the poison message was redelivered for ever, and no message
    behind it."""
    caplog.set_level(logging.CRITICAL, "toymq")
    kills = 0
    with BrokerProcess(tmp_path / "d") as broker:
        async with toymq.connect(f"127.0.0.1:{broker.port}", backoff_max_s=0.05, timeout_s=TIMEOUT_S) as mq:
            await mq.create("jobs", {"max_attempts": 2})
            for payload in (b"good", b"poison", b"good"):
                await mq.pub("jobs", payload)
            async with mq.sub("jobs.dlq", "audit") as letters:
                done: set[int] = set()

                async def is_killed() -> bool:
                    async with mq.sub("jobs", "workers", window=1) as messages:
                        while len(done) < 2:
                            message = await messages.next(TIMEOUT_S)
                            if message.payload == b"poison":
                                await asyncio.to_thread(broker.kill)
                                return True
                            await message.ack(sync=True)
                            done.add(message.id)
                    return False

                while await is_killed():
                    kills += 1
                    assert kills <= 4, "two that are accidents, and max_attempts"
                    await asyncio.to_thread(broker.start)
                letter = await letters.next(TIMEOUT_S)
                assert (letter.payload, letter.headers["toymq-attempts"]) == (b"poison", "2")


async def test_a_poison_message_is_tried_so_often_and_comes_back_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The broker is killed after each attempt, which counts all the same. (A synced ack of a good message writes both to the
    disk.)"""
    caplog.set_level(logging.CRITICAL, "toymq")
    attempts: list[int] = []
    with BrokerProcess(tmp_path / "d") as broker:
        async with toymq.connect(f"127.0.0.1:{broker.port}", backoff_max_s=0.05, timeout_s=TIMEOUT_S) as mq:
            await mq.create("jobs", {"max_attempts": 3})
            async with mq.sub("jobs.dlq", "audit") as letters:
                await mq.pub("jobs", b"poison", key="k")
                for round_number in range(3):
                    good = await mq.pub("jobs", b"good")
                    async with mq.sub("jobs", "workers", mode="shared") as messages:
                        while True:
                            message = await messages.next(TIMEOUT_S)
                            if message.payload == b"poison":
                                attempts.append(message.attempt)
                            elif message.id == good.msg_id:
                                await message.ack(sync=True)
                            if len(attempts) == round_number + 1 and message.id >= good.msg_id:
                                break
                        await asyncio.to_thread(broker.kill)
                    # The subscription is closed: going on by itself, it would take the message again, and count an attempt.
                    await asyncio.to_thread(broker.start)
                letter = await letters.next(TIMEOUT_S)
                assert attempts == [1, 2, 3]
                assert (letter.id, letter.payload, letter.headers["toymq-attempts"]) == (0, b"poison", "3")
                await asyncio.to_thread(broker.restart)
                assert await mq.offsets("jobs.dlq") == (0, 1), "one copy"
                assert await mq.redrive("jobs.dlq") == 1
                await asyncio.to_thread(broker.restart)
                assert await mq.redrive("jobs.dlq") == 0
                (again,) = await mq.pull("jobs", "workers", 9, wait=TIMEOUT_S)
                assert (again.payload, again.attempt, again.headers["toymq-redrives"]) == (b"poison", 1, "1")
                await again.ack(sync=True)
                assert (await mq.describe("jobs"))["consumers"][0]["backlog"] == 0
