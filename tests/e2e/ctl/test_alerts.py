"""``toymqctl alerts``: rules of a real broker, which fire, repeat no more than they should, and are resolved."""

import json
from pathlib import Path

from tests.support.broker_process import BrokerProcess
from tests.support.ctl import Ctl, ok, refused, rows, values
from tests.support.hook import hooked
from toymq import sync
from toymq_py.config.alerts import Alert
from toymq_py.storage import alerts_file
from toymq_py.storage.fs import RealFileSystem


def test_a_rule_fires_at_a_url_and_is_resolved(web: Ctl) -> None:
    assert ok(web("alerts")).startswith("no alerts: `toymqctl alerts set")
    with hooked() as hook:
        made = ok(web("alerts", "set", "lost", "unattached", "jobs", "2", "--for", "0s", "--url", hook.url))
        assert made == f"lost: unattached of jobs at least 2 for 0ms to {hook.url}\n"
        assert ok(web("alerts", "test", "lost")) == "lost: taken\n"
        assert json.loads(hook.next()[1])["state"] == "test"
        ok(web("pub", "jobs", "a", "b"))
        fired = json.loads(hook.next()[1])
        assert (fired["alert"], fired["state"], fired["topic"], fired["value"]) == ("lost", "firing", "jobs", 2)
        shown = ok(web("alerts"))
        assert shown.splitlines()[1].split() == ["lost", "unattached", "jobs", "2", "0ms", hook.url, "1", "firing"]
        assert "lost: jobs: 2" in shown
        (found,) = values(web("alerts", "list", "--json"))
        assert (found["firing"], found["clear"]) == (1, 1)
        ok(web("purge", "jobs", "--yes"))
        assert json.loads(hook.next()[1])["state"] == "resolved"
    assert ok(web("alerts", "delete", "lost")) == "deleted lost\n"
    refused(web("alerts", "delete", "lost"), 1, "NO_SUCH_ALERT: no alert lost: `toymqctl alerts` lists them")


def test_rules_survive_a_kill_and_write_to_a_topic(web: Ctl, with_gateway: BrokerProcess) -> None:
    ok(web("alerts", "set", "dead", "letters", ">", "--to", "alerts", "--for", "0s"))
    ok(web("alerts", "set", "full", "disk", "1GiB", "--to", "alerts", "--clear", "2GiB"))
    with_gateway.restart()
    assert [row[:4] for row in rows(web("alerts"))] == [
        ["alert", "when", "topic", "threshold"], ["dead", "letters", ">", "1"], ["full", "disk", "-", "1GiB"],
    ]  # fmt: skip
    with sync.connect(f"toymq://127.0.0.1:{with_gateway.port}") as client:
        client.create("orders", {"max_attempts": 1})
        client.pub("orders", b"x")
        next(iter(client.sub("orders", "c"))).nack()
        notice = next(iter(client.sub("alerts", "operator")))
        found = notice.json()
        notice.ack()
    assert (found["alert"], found["topic"], found["text"].partition(" (")[0]) == (
        "dead", "orders", "toymq alert dead firing: orders has 1 dead letter",
    )  # fmt: skip


def test_a_broker_without_a_gateway_warns_of_rules_that_do_nothing(tmp_path: Path) -> None:
    disk = RealFileSystem()
    with BrokerProcess(tmp_path / "d") as broker:
        broker.stop()
        assert "do nothing" not in broker.ended()[1]
    rule = Alert.from_json({"when": "letters", "topic": ">", "to": "alerts"})
    alerts_file.FILE.write(disk, str(tmp_path / "d"), alerts_file.encode({"dead": rule}))
    with BrokerProcess(tmp_path / "d") as broker:
        broker.stop()
        assert "1 alerts are defined and do nothing: they need --http or --https" in broker.ended()[1]


def test_wrong_usage_names_what_to_write(web: Ctl) -> None:
    refused(
        web("alerts", "set", "a", "slow", "t"), 2,
        "'slow' is not one of 'lag', 'age', 'retrying', 'letters', 'unattached', 'disk'",
    )  # fmt: skip
    refused(web("alerts", "set", "a", "lag"), 2, "lag needs a TOPIC: a name or a pattern, '>' for every topic")
    refused(web("alerts", "set", "a", "disk", "t", "1GiB"), 2, "too many arguments: disk takes a threshold")
    refused(web("alerts", "set", "a", "lag", "t", "--to", "x"), 2, "lag needs a THRESHOLD: a number of messages, 10000")
    refused(web("alerts", "set", "a", "disk", "--to", "x"), 2, "disk needs a THRESHOLD: a size with its unit, 10GiB")
    refused(web("alerts", "set", "a", "lag", "t", "5"), 2, "name --url or --to: where notices go")
    refused(web("alerts", "set", "a", "lag", "t", "5", "--to", "x", "--url", "http://y/"), 2, "make two rules for both")
    refused(web("alerts", "set", "a", "disk", "10", "--to", "x"), 1, "invalid threshold '10': write its unit, 10GiB say")
    refused(web("alerts", "set", "a", "age", "t", "5", "--to", "x"), 1, "invalid threshold '5'")
