"""Exchanges, queues and bindings in ``toymq definitions``, on a running broker, a stopped one and at start. ADR 0162."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pika
from click.testing import CliRunner, Result

from tests.support.amqp_wire import AmqpWire, bodies, declare
from tests.support.broker_process import BrokerProcess, run
from toymq_py.cli.main import main

SPEAKS = ("--amqp", "127.0.0.1:0", "--http", "127.0.0.1:0")


def definitions(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, ["definitions", *arguments], input=stdin)


def where(broker: BrokerProcess) -> tuple[str, str]:
    return f"--url=127.0.0.1:{broker.port}", f"--http-url={broker.http}"


def connected(broker: BrokerProcess) -> Any:
    return pika.BlockingConnection(pika.URLParameters(broker.amqp))


def make(broker: BrokerProcess) -> None:
    """Declare, with pika, durable exchanges and queues and others."""
    with connected(broker) as connection:
        channel = connection.channel()
        channel.exchange_declare("orders", "topic", durable=True, arguments={"alternate-exchange": "unrouted"})
        channel.exchange_declare("unrouted", "fanout", durable=True, internal=True)
        channel.exchange_declare("passing", "fanout")
        channel.queue_declare("mails", durable=True, arguments={"x-message-ttl": 60_000, "note": "ü\n"})
        channel.queue_declare("jobs@host/1", durable=True, arguments={"x-dead-letter-exchange": "unrouted"})
        channel.queue_declare("rest", durable=True)
        channel.queue_declare("mine", exclusive=True)
        channel.queue_bind("mails", "orders", "mail.#")
        channel.queue_bind("jobs@host/1", "amq.headers", "", {"x-match": "any", "kind": "job", "any": None})
        channel.queue_bind("rest", "unrouted", "")
        channel.queue_bind("mine", "orders", "#")
        channel.exchange_bind("passing", "orders", "#")


def test_an_export_of_one_broker_makes_another(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "a", *SPEAKS) as broker:
        make(broker)
        exported = definitions("export", *where(broker)).stdout
        assert definitions("export", where(broker)[0]).stdout == exported, "the broker says where its gateway is"
        broker.stop()
        assert definitions("export", f"--data-dir={tmp_path / 'a'}").stdout == exported
    found = tomllib.loads(exported)
    assert [each["name"] for each in found["exchange"]] == ["orders", "unrouted"]
    assert [each["name"] for each in found["queue"]] == ["jobs@host/1", "mails", "rest"]
    assert sorted(each["queue"] for each in found["binding"]) == ["jobs@host/1", "mails", "rest"]
    with BrokerProcess(tmp_path / "b", *SPEAKS) as broker:
        would = definitions("diff", "-", *where(broker), stdin=exported)
        assert would.exit_code == 1
        assert "+ exchange orders type=topic arguments={\"alternate-exchange\": \"unrouted\"}" in would.stdout.splitlines()
        assert definitions("import", "-", *where(broker), stdin=exported).stdout == would.stdout
        assert definitions("import", "-", *where(broker), stdin=exported).stdout == "nothing to change\n"
        broker.restart()
        assert definitions("export", *where(broker)).stdout == exported
        with connected(broker) as connection:
            channel = connection.channel()
            channel.queue_declare("mails", durable=True, arguments={"x-message-ttl": 60_000, "note": "ü\n"})
            channel.confirm_delivery()
            for exchange, key in (("orders", "mail.new"), ("orders", "elsewhere")):
                channel.basic_publish(exchange, key, key)
            assert [channel.basic_get(queue)[2] for queue in ("mails", "rest")] == [b"mail.new", b"elsewhere"]


def test_a_stopped_broker_gets_them_too(tmp_path: Path) -> None:
    directory = str(tmp_path / "d")
    with BrokerProcess(directory, *SPEAKS) as broker:
        broker.stop()
    wanted = {
        "exchange": [{"name": "logs", "type": "fanout"}], "queue": [{"name": "q"}],
        "binding": [{"source": "logs", "queue": "q"}],
    }  # fmt: skip
    here = f"--data-dir={directory}"
    assert definitions("import", "-", here, stdin=json.dumps(wanted)).stdout.splitlines() == [
        "+ exchange logs type=fanout", "+ queue q", "+ binding logs -> queue q",
    ]  # fmt: skip
    other = json.dumps({"exchange": [{"name": "logs", "type": "direct"}]})
    would = definitions("diff", "-", here, stdin=other)
    assert "type=fanout -> direct; import refuses it: what is there is not changed: delete it first\n" in would.stdout
    assert '"refused": "what is there' in definitions("diff", "--json", "-", here, stdin=other).stdout
    refused = definitions("import", "-", here, stdin=other)
    assert refused.exit_code == 2
    assert "type=fanout -> direct: what is there is not changed: delete it first" in refused.stderr
    with BrokerProcess(directory, *SPEAKS) as broker, AmqpWire(broker.amqp).login() as wire:
        assert declare(wire, "q", passive=True)["message_count"] == 0
        wire.ask(1, "basic.consume", queue="q")
        wire.publish(b"one", "", exchange="logs")
        assert bodies(wire, 1) == [b"one"]


def test_a_broker_declares_them_at_every_start(tmp_path: Path) -> None:
    file = tmp_path / "wanted.toml"
    file.write_text('[[topic]]\nname = "q"\nmax_attempts = 3\n\n[[queue]]\nname = "q"\n')
    options = (str(tmp_path / "d"), "--definitions", str(file))
    without = run("serve", "--data-dir", *options, "--listen", "127.0.0.1:0")
    assert (without.returncode, "they need --amqp or --amqps" in without.stderr) == (2, True)
    for _ in range(2):
        with BrokerProcess(*options, *SPEAKS) as broker, AmqpWire(broker.amqp).login() as wire:
            assert declare(wire, "q", passive=True)["message_count"] == 0
            exported = tomllib.loads(definitions("export", *where(broker)).stdout)
            assert (exported["topic"][0]["max_attempts"], exported["queue"]) == (3, [{"name": "q"}])


def test_a_backup_has_them(tmp_path: Path) -> None:
    """The definitions exported from the broker, from its backup, and from the restored backup are the same."""
    with BrokerProcess(tmp_path / "d", *SPEAKS) as broker:
        make(broker)
        exported = definitions("export", *where(broker)).stdout
        assert run("backup", str(broker.data_dir), str(tmp_path / "copy")).returncode == 0
    assert run("restore", str(tmp_path / "copy"), str(tmp_path / "back")).returncode == 0
    with BrokerProcess(tmp_path / "back", *SPEAKS) as broker:
        assert definitions("export", *where(broker)).stdout == exported


def test_many_are_declared_in_few_requests(tmp_path: Path) -> None:
    bindings = [{"source": "amq.topic", "queue": "q", "routing_key": f"{number}.{'x' * 100}"} for number in range(1200)]
    wanted = json.dumps({"queue": [{"name": "q"}], "binding": bindings})
    with BrokerProcess(tmp_path / "d", *SPEAKS) as broker:
        assert len(definitions("import", "-", *where(broker), stdin=wanted).stdout.splitlines()) == 1201
        exported = json.loads(definitions("export", "--json", *where(broker)).stdout)
        assert len(exported["binding"]) == 1200
