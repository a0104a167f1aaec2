"""Virtual hosts of AMQP beside ``/``: their own exchanges and queues, as topics with the host's name. ADR 0164."""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pika
import pytest
from click.testing import CliRunner

from tests.support.amqp_wire import AmqpWire, declare
from tests.support.broker_process import BrokerProcess, run
from tests.support.tokens import table, token
from toymq import sync
from toymq_py.cli.main import main

SPEAKS = ("--amqp", "127.0.0.1:0", "--http", "127.0.0.1:0")
HOSTS = ("--amqp-vhost", "prod", "--amqp-vhost", "a.b/c")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "d", *SPEAKS, *HOSTS) as broker:
        yield broker


def test_each_has_its_own_queues_and_exchanges(broker: BrokerProcess) -> None:
    with AmqpWire(broker.amqp).login() as default, AmqpWire(broker.amqp).login(vhost="prod") as prod:
        for number, wire in enumerate((default, prod)):
            declare(wire, "orders")
            wire.ask(1, "exchange.declare", exchange="logs", type=("topic", "fanout")[number], durable=True)
            wire.ask(1, "queue.bind", queue="orders", exchange="logs", routing_key="a")
            wire.ask(1, "confirm.select")
        default.publish(b"for all", "a", exchange="logs")
        default.expect("basic.ack")
        for _ in range(2):
            prod.publish(b"for prod", "b", exchange="logs")
            prod.expect("basic.ack")
        assert declare(default, "orders", passive=True)["message_count"] == 1
        assert declare(prod, "orders", passive=True)["message_count"] == 2
        with sync.connect(f"toymq://127.0.0.1:{broker.port}") as mq:
            assert [each.payload for each in mq.pull("_vhost.prod.orders", "reader", 2)] == [b"for prod"] * 2
        prod.send(1, "queue.declare", queue="absent", passive=True)
        assert prod.closed_with() == (404, "NOT_FOUND - no queue 'absent' in vhost 'prod'")
        default.send(1, "queue.declare", queue="_vhost.prod.orders", passive=True)
        assert default.closed_with()[0] == 404, "no name leads into another virtual host"


def test_they_outlive_a_kill_and_a_start_without_them(broker: BrokerProcess, tmp_path: Path) -> None:
    with AmqpWire(broker.amqp).login(vhost="a.b/c") as wire:
        declare(wire, "q")
        declare(wire, "mine", exclusive=True)
        wire.ask(1, "exchange.declare", exchange="logs", type="fanout", durable=True)
        wire.ask(1, "queue.bind", queue="q", exchange="logs")
        wire.ask(1, "confirm.select")
        wire.publish(b"kept", "", exchange="logs")
        wire.expect("basic.ack")
        broker.restart()
    with AmqpWire(broker.amqp).login(vhost="a.b/c") as wire:
        wire.send(1, "queue.declare", queue="mine", passive=True)
        assert wire.closed_with()[0] == 404
    broker.stop()
    with BrokerProcess(broker.data_dir, *SPEAKS) as without:
        with AmqpWire(without.amqp).login() as wire:
            declare(wire, "other")  # writes the file
        with AmqpWire(without.amqp) as wire, pytest.raises(AssertionError, match=r"vhost 'a[.]b/c' not found: there are /"):
            wire.login(vhost="a.b/c")
        without.stop()
    broker.start()
    with AmqpWire(broker.amqp).login(vhost="a.b/c") as wire:
        wire.publish(b"again", "", exchange="logs")
        wire.send(1, "basic.get", queue="q", no_ack=True)
        assert wire.content().body == b"kept"


def test_an_unknown_one_is_refused_as_by_rabbitmq(broker: BrokerProcess) -> None:
    parameters = pika.URLParameters(f"{broker.amqp.rstrip('/')}/absent")
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match=r"530.*vhost 'absent' not found"):
        pika.BlockingConnection(parameters)
    with pika.BlockingConnection(pika.URLParameters(f"{broker.amqp.rstrip('/')}/a.b%2Fc")) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        to_dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
        channel.queue_declare("work", durable=True, arguments=to_dead)
        channel.queue_declare("dead", durable=True)
        channel.basic_publish("", "work", b"no good")
        method, _, _ = channel.basic_get("work")
        channel.basic_nack(method.delivery_tag, requeue=False)
        _, properties, body = next(channel.consume("dead", auto_ack=True, inactivity_timeout=60))
        assert (body, properties.headers["x-first-death-queue"]) == (b"no good", "work"), "dead letters stay in their host"


def test_rights_are_those_of_the_topics(tmp_path: Path) -> None:
    auth = tmp_path / "auth.toml"
    rights = 'publish = ["_vhost.prod.>"]\nsubscribe = ["_vhost.prod.>"]'
    auth.write_text(table("worker", rights) + table("boss", "admin = true"))
    auth.chmod(0o600)
    with BrokerProcess(tmp_path / "d", *SPEAKS, *HOSTS, "--auth-file", str(auth)) as broker:
        for vhost in ("/", "prod"):
            with AmqpWire(broker.amqp).login("boss", token("boss"), vhost=vhost) as boss:
                declare(boss, "q")
        with AmqpWire(broker.amqp).login("worker", token("worker"), vhost="prod") as worker:
            worker.ask(1, "confirm.select")
            worker.publish(b"one", "q")
            worker.expect("basic.ack")
            worker.ask(1, "basic.consume", queue="q")
            assert worker.content().body == b"one"
        with AmqpWire(broker.amqp).login("worker", token("worker")) as worker:
            worker.send(1, "basic.consume", queue="q")
            assert worker.closed_with()[0] == 403


def test_definitions_and_lists_have_the_host(broker: BrokerProcess, tmp_path: Path) -> None:
    wanted = {
        "exchange": [{"vhost": "prod", "name": "logs", "type": "fanout"}],
        "queue": [{"vhost": "prod", "name": "q"}, {"name": "q"}],
        "binding": [{"vhost": "prod", "source": "logs", "queue": "q"}],
    }
    where = (f"--url=127.0.0.1:{broker.port}", f"--http-url={broker.http}")
    told = CliRunner().invoke(main, ["definitions", "import", "-", *where], input=json.dumps(wanted)).stdout.splitlines()
    assert told == [
        "+ exchange logs of vhost prod type=fanout", "+ queue q", "+ queue q of vhost prod",
        "+ binding logs -> queue q of vhost prod",
    ]  # fmt: skip
    exported = CliRunner().invoke(main, ["definitions", "export", *where]).stdout
    assert tomllib.loads(exported)["binding"] == wanted["binding"]
    queues = httpx.get(f"{broker.http}v1/queues").json()["queues"]
    assert [(each["vhost"], each["topic"]) for each in queues] == [("/", "q"), ("prod", "_vhost.prod.q")]
    unknown = json.dumps({"queue": [{"vhost": "absent", "name": "q"}]})
    refused = CliRunner().invoke(main, ["definitions", "import", "-", *where], input=unknown)
    assert "vhost 'absent' not found" in refused.stderr
    broker.stop()
    stopped = CliRunner().invoke(main, ["definitions", "export", f"--data-dir={broker.data_dir}"]).stdout
    assert stopped == exported


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--amqp-vhost", "/", "--amqp", "127.0.0.1:0"), "invalid virtual host '/'"),
        (("--amqp-vhost", "prod"), "--amqp-vhost does nothing without --amqp or --amqps"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_named(tmp_path: Path, options: tuple[str, ...], text: str) -> None:
    refused = run("serve", "--data-dir", str(tmp_path / "d"), "--listen", "127.0.0.1:0", *options)
    assert (refused.returncode, text in refused.stderr) == (2, True), refused.stderr
