"""Records the bytes that RabbitMQ client libraries and a toymq broker exchange, for tests/unit/amqp/test_recorded.py.

``python -m tests.support.amqp_recorder`` writes tests/unit/amqp/recorded anew: it starts a broker and a relay in front of it,
and each client has a short session through the relay; workers of frameworks run as processes of their own. The machine's host
name is in the bytes, and is replaced by as many letters.
"""

import asyncio
import base64
import json
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

from tests.support.broker_process import TIMEOUT_S, BrokerProcess
from tests.support.framework_rig import WorkerProcess, done, until
from tests.support.recorded_sessions import RECORDED

IDLE_S = 0.2
"""Both sides have said what they had to."""


class Relay:
    """Passes connections on to a port, and keeps the bytes that each connection sends in each direction."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.connections: list[tuple[bytearray, bytearray]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            broker = socket.create_connection(("127.0.0.1", self._target))
            said = bytearray(), bytearray()
            self.connections.append(said)
            for source, sink, kept in ((client, broker, said[0]), (broker, client, said[1])):
                threading.Thread(target=_pass_on, args=(source, sink, kept), daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket, kept: bytearray) -> None:
    try:
        while data := source.recv(1 << 16):
            kept += data
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        return  # one side is gone: what it said is kept


def use_pika(url: str) -> None:
    import pika

    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare("pika", durable=True, arguments={"x-delivery-limit": 3})
        channel.queue_bind("pika", "amq.topic", "a.#")
        headers = {"n": 1, "list": [True, None, "x"]}
        properties = pika.BasicProperties(content_type="text/plain", headers=headers, delivery_mode=2)
        for body in (b"one", b"", b"two" * 30):
            channel.basic_publish("amq.topic", "a.b", body, properties, mandatory=True)
        channel.basic_qos(prefetch_count=2)
        method, _, _ = channel.basic_get("pika")
        channel.basic_nack(method.delivery_tag)
        for count, (method, _, _) in enumerate(channel.consume("pika"), 1):
            channel.basic_ack(method.delivery_tag)
            if count == 3:
                break
        channel.cancel()


def use_aio_pika(url: str) -> None:
    import aio_pika

    async def session() -> None:
        async with await aio_pika.connect_robust(url) as connection:
            channel = await connection.channel()
            queue = await channel.declare_queue("aio", durable=True)
            for number in range(3):
                await channel.default_exchange.publish(aio_pika.Message(b"%d" % number, headers={"n": number}), "aio")
            async with queue.iterator() as messages:
                async for message in messages:
                    await message.ack()
                    if message.body == b"2":
                        break

    asyncio.run(session())


def use_kombu(url: str) -> None:
    import kombu

    with kombu.Connection(f"{url}//", transport_options={"confirm_publish": True}) as connection:
        queue = kombu.Queue("kombu", kombu.Exchange("media", "topic"), "video.#")
        connection.Producer().publish({"n": 1}, exchange=queue.exchange, routing_key="video.new", declare=[queue])
        seen: list[object] = []

        def on_message(body: object, message: kombu.Message) -> None:
            seen.append(body)
            message.ack()

        with connection.Consumer(queue, callbacks=[on_message]):
            while not seen:
                connection.drain_events(timeout=TIMEOUT_S)


def use_worker(url: str, send: Callable[[str], object], *arguments: str) -> None:
    """Start a framework's worker process, and have it do one task."""
    with tempfile.TemporaryDirectory() as directory:
        said = Path(directory)
        with WorkerProcess(*arguments, broker_url=url, said=said) as worker:
            send(url)
            until(lambda: "add 1" in done(said))
            until_idle()
            worker.kill()
            worker.start()  # for the end of the context


def until_idle() -> None:
    import time

    time.sleep(IDLE_S)


def send_celery(url: str) -> None:
    from tests.support.celery_tasks import make_app

    app = make_app(f"{url}//")
    app.tasks["add"].delay(1)
    app.pool.force_close_all()


def send_dramatiq(url: str) -> None:
    from tests.support.dramatiq_tasks import make_broker

    broker = make_broker(url)
    broker.actors["add"].send(1)
    broker.close()


def send_faststream(url: str) -> None:
    from faststream.rabbit import RabbitBroker, RabbitQueue

    async def session() -> None:
        async with RabbitBroker(url, logger=None) as broker:
            await broker.declare_queue(RabbitQueue("adds"))
            await broker.publish(1, "adds")

    asyncio.run(session())


def send_taskiq(url: str) -> None:
    from tests.support.taskiq_tasks import make_broker

    async def session() -> None:
        broker = make_broker(url)
        await broker.startup()
        task = broker.find_task("add")
        assert task is not None
        await task.kiq(1)
        await broker.shutdown()

    asyncio.run(session())


SESSIONS: dict[str, Callable[[str], object]] = {
    "pika": use_pika,
    "aio-pika": use_aio_pika,
    "kombu": use_kombu,
    "celery": lambda url: use_worker(
        url, send_celery, "celery", "-A", "tests.support.celery_tasks", "worker", "-c", "1", "-n", "worker@host"
    ),
    "dramatiq": lambda url: use_worker(
        url, send_dramatiq, "dramatiq", "tests.support.dramatiq_tasks:broker", "-p", "1", "-t", "1"
    ),
    "faststream": lambda url: use_worker(
        url, send_faststream, "faststream", "run", "tests.support.faststream_tasks:app"
    ),
    "taskiq": lambda url: use_worker(
        url, send_taskiq, "taskiq", "worker", "tests.support.taskiq_tasks:broker", "-w", "1"
    ),
}  # fmt: skip
"""A client, and its session with a broker."""


def main() -> None:
    RECORDED.mkdir(exist_ok=True)
    name = f"@{socket.gethostname()}".encode()
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    for client, session in SESSIONS.items():
        if sys.argv[1:] and client not in sys.argv[1:]:
            continue
        with tempfile.TemporaryDirectory() as directory, BrokerProcess(directory, "--amqp", "127.0.0.1:0") as broker:
            relay = Relay(int(broker.amqp.rpartition(":")[2]))
            session(f"amqp://guest:guest@127.0.0.1:{relay.port}")
            until_idle()
            said = [
                [base64.b64encode(bytes(each).replace(name, b"@" + b"h" * (len(name) - 1))).decode() for each in connection]
                for connection in list(relay.connections)
            ]
        found = {"client": f"{client} {version(client)}", "connections": said}
        (RECORDED / f"{client}.json").write_text(json.dumps(found, indent=1) + "\n")
        sys.stdout.write(f"{client}: {[[len(side) * 3 // 4 for side in each] for each in said]}\n")


if __name__ == "__main__":
    main()
