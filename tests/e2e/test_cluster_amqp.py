"""Clients of RabbitMQ in a cluster: unchanged, with a list of addresses, over the death of the leader's machine (ADR 0173)."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.amqp_wire import AmqpWire, bodies, declare
from tests.support.cluster_rig import MONOTONIC, WAIT_S, ClusterNode, ClusterRig, running_cluster
from tests.support.requirements import require

pika = pytest.importorskip("pika")
kombu = pytest.importorskip("kombu")
mixins = pytest.importorskip("kombu.mixins")
pytestmark = require("etcd", "proc")

EXCHANGE, QUEUE, KEY = "orders", "billing", "paid"
PAUSE_S = 0.1


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterRig]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), amqp=True) as rig:
        yield rig


class Publisher(threading.Thread):
    """Publishes through pika with the addresses of all nodes and with confirms, and republishes what was not confirmed."""

    def __init__(self, rig: ClusterRig) -> None:
        super().__init__(daemon=True)
        self._parameters = [
            pika.ConnectionParameters("127.0.0.1", node.amqp_port, blocked_connection_timeout=10)
            for node in rig.nodes.values()
        ]  # fmt: skip
        self.confirmed: set[bytes] = set()
        self.connected = 0
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.is_set():
            with suppress(pika.exceptions.AMQPError):
                self._publish()
            self.stopping.wait(PAUSE_S)

    def _publish(self) -> None:
        with pika.BlockingConnection(self._parameters) as connection:
            self.connected += 1
            channel = connection.channel()
            channel.confirm_delivery()
            channel.exchange_declare(EXCHANGE, "topic", durable=True)
            while not self.stopping.is_set():
                body = b"%d" % len(self.confirmed)
                channel.basic_publish(EXCHANGE, KEY, body, mandatory=True)  # raises where no queue has it
                self.confirmed.add(body)

    async def more(self, count: int) -> None:
        wanted, until = len(self.confirmed) + count, MONOTONIC() + WAIT_S
        while len(self.confirmed) < wanted:
            assert MONOTONIC() < until, f"{len(self.confirmed)} confirmed, {wanted} were waited for"
            assert self.is_alive()
            await asyncio.sleep(0.02)


class Consumer(mixins.ConsumerMixin):  # type: ignore[misc, name-defined] # no types
    """Consumes as a Celery worker does at its core: kombu's mixin, with all nodes in its URL. Acks each message when it is
    done."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.seen: set[bytes] = set()

    def get_consumers(self, make: Any, channel: Any) -> list[Any]:
        queue = kombu.Queue(QUEUE, kombu.Exchange(EXCHANGE, "topic"), routing_key="#")
        return [make([queue], on_message=self.handle, prefetch_count=10)]

    def handle(self, message: Any) -> None:
        self.seen.add(bytes(message.body))
        message.ack()

    def lacks(self, confirmed: set[bytes]) -> set[bytes]:
        """Wait for all confirmed messages. Returns: those that were not delivered."""
        until = MONOTONIC() + WAIT_S
        while (missing := confirmed - self.seen) and MONOTONIC() < until:
            time.sleep(0.02)
        return missing


def refused(node: ClusterNode) -> bool:
    try:
        AmqpWire(f"amqp://127.0.0.1:{node.amqp_port}").close()
    except ConnectionRefusedError:
        return True
    return False


async def serves(node: ClusterNode) -> None:
    until = MONOTONIC() + WAIT_S
    while refused(node):
        assert MONOTONIC() < until, f"{node.name} leads and does not listen"
        await asyncio.sleep(0.02)


async def test_what_was_confirmed_is_consumed_after_the_leaders_machine_died(cluster: ClusterRig) -> None:
    await cluster.in_sync(3)
    leader = await cluster.leader()
    await serves(leader)
    with AmqpWire(f"amqp://127.0.0.1:{leader.amqp_port}") as wire:
        wire.login()
        wire.ask(1, "exchange.declare", exchange=EXCHANGE, type="topic", durable=True)
        declare(wire, QUEUE)
        wire.ask(1, "queue.bind", queue=QUEUE, exchange=EXCHANGE, routing_key="#")
    publisher = Publisher(cluster)
    urls = ";".join(f"amqp://127.0.0.1:{node.amqp_port}" for node in cluster.nodes.values())
    consumer = Consumer(kombu.Connection(urls, heartbeat=10))
    works = threading.Thread(target=consumer.run, daemon=True)
    publisher.start()
    works.start()
    try:
        await publisher.more(200)
        leader.kill_machine()
        after = await cluster.leader(other_than=leader.name)
        await publisher.more(200)
        assert not refused(after)
        await asyncio.to_thread(leader.start)
        await cluster.in_sync(3)
        assert refused(leader), "it follows"
        publisher.stopping.set()
        await asyncio.to_thread(publisher.join, WAIT_S)
        lost = await asyncio.to_thread(consumer.lacks, publisher.confirmed)
    finally:
        publisher.stopping.set()
        consumer.should_stop = True
        await asyncio.to_thread(works.join, WAIT_S)
    assert not lost, f"{len(lost)} of {len(publisher.confirmed)} confirmed are lost: {sorted(lost)[:5]}\n{cluster.logs()}"
    assert publisher.connected > 1, "it was connected to the leader that died"
    assert await cluster.settled_differences() == [], cluster.logs()


async def test_a_follower_that_leads_has_what_was_declared_and_nothing_that_was_of_a_connection(cluster: ClusterRig) -> None:
    await cluster.in_sync(3)
    leader = await cluster.leader()
    await serves(leader)
    with AmqpWire(f"amqp://127.0.0.1:{leader.amqp_port}") as wire:
        wire.login()
        wire.ask(1, "exchange.declare", exchange="late", type="x-delayed-message", durable=True,
                 arguments={"x-delayed-type": "direct"})  # fmt: skip
        declare(wire, "work", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead",
                                         "x-max-length": 2, "x-max-priority": 3})  # fmt: skip
        declare(wire, "dead")
        declare(wire, "mine", durable=False, exclusive=True)
        wire.ask(1, "queue.bind", queue="work", exchange="late", routing_key="k")
        wire.ask(1, "confirm.select")
        for body in (b"a", b"b"):
            wire.publish(body, "k", exchange="late")
            wire.expect("basic.ack")
        leader.terminate()  # it hands over
        assert wire.closed_with("connection.close")[0] == 320
    assert await asyncio.to_thread(leader.wait) == 0
    after = await cluster.leader(other_than=leader.name)
    await serves(after)
    with AmqpWire(f"amqp://127.0.0.1:{after.amqp_port}") as wire:
        wire.login()
        assert wire.ask(1, "queue.declare", queue="work", passive=True)["message_count"] == 2
        wire.ask(1, "confirm.select")
        wire.publish(b"c", "k", exchange="late")
        wire.expect("basic.ack")
        wire.send(1, "basic.consume", queue="dead", consumer_tag="d")
        wire.expect("basic.consume-ok")
        assert bodies(wire, 1) == [b"a"], "the limit and the dead-letter exchange are there"
        wire.send(1, "queue.declare", queue="mine", passive=True)
        assert wire.closed_with()[0] == 404
    await asyncio.to_thread(leader.start)
    await cluster.in_sync(3)


def test_a_pair_below_its_minimum_refuses_publishes_and_takes_them_again(tmp_path: Path) -> None:
    with running_cluster(tmp_path, names=("n1", "n2"), min_in_sync=2, amqp=True) as rig:
        asyncio.run(_pair(rig))


async def _pair(rig: ClusterRig) -> None:
    await rig.in_sync(2)
    leader = await rig.leader()
    await serves(leader)
    follower = next(node for node in rig.nodes.values() if node is not leader)
    with AmqpWire(f"amqp://127.0.0.1:{leader.amqp_port}") as wire:
        wire.login()
        declare(wire, "q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "letters"})
        declare(wire, "letters")
        wire.ask(1, "confirm.select")
        wire.publish(b"a", "q")
        assert wire.expect("basic.ack")["delivery_tag"] == 1
        follower.kill_machine()
        await rig.in_sync(1)
        refused = 2
        while True:  # the leader hears of it a moment later
            wire.publish(b"b", "q")
            if wire.event().name == "basic.nack":  # type: ignore[union-attr]
                break
            refused += 1
        wire.open(2)
        wire.publish(b"c", "q", channel=2)
        code, text = wire.closed_with()
        assert (code, "NOT_ENOUGH_REPLICAS" in text) == (406, True)
        wire.open(3)
        wire.ask(3, "basic.qos", prefetch_count=1)
        wire.ask(3, "basic.consume", queue="q", consumer_tag="c")
        assert wire.content().body == b"a", "deliveries go on"
        wire.open(4)
        wire.send(4, "basic.consume", queue="letters", consumer_tag="d")
        wire.expect("basic.consume-ok")
        wire.send(3, "basic.reject", delivery_tag=1, requeue=False)
        await asyncio.to_thread(follower.start)
        await rig.in_sync(2)
        while (found := wire.content()).method["consumer_tag"] != "d":  # it came again, until its dead letter could be stored
            wire.send(3, "basic.reject", delivery_tag=found.method["delivery_tag"], requeue=False)
