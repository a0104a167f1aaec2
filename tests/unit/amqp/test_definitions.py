"""AMQP declarations as rows and as definitions, of a topology alone. ``tests/e2e/amqp`` tests them with a broker."""

from typing import Any

from toymq_py.amqp.definitions import binding_rows, defined, exchange_rows
from toymq_py.amqp.topology import Binding, Exchange, Queue, Topology


class Declared:
    """Stands for the queues, as far as lists need them."""

    def __init__(self) -> None:
        self.topology = found = Topology()
        for name, durable in (("lasting", True), ("passing", False)):
            found.declare_exchange(Exchange(name, "topic", durable, arguments={"alternate-exchange": "amq.fanout"}))
        for name, exclusive in (("q", False), ("mine", True)):
            found.queue_added(Queue(name, name, exclusive=exclusive))
        for source in ("lasting", "passing", "amq.topic"):
            for target in ("q", "mine"):
                found.bind(Binding(source, target, False, "a.*"))
        found.bind(Binding("lasting", "passing", True, "b"))
        found.bind(Binding("lasting", "amq.topic", True, "c"))


def test_what_outlives_a_restart_is_defined() -> None:
    names = [each.name for each in defined(Declared().topology)]
    assert names == [
        "exchange lasting", "queue q", "binding lasting -> queue q a.*", "binding amq.topic -> queue q a.*",
        "binding lasting -> exchange amq.topic c",
    ]  # fmt: skip


def test_rows_have_all() -> None:
    queues: Any = Declared()
    rows = {row["name"]: row for row in exchange_rows(queues)}
    assert list(rows) == sorted(rows)
    assert rows["lasting"] == {
        "vhost": "/", "name": "lasting", "type": "topic", "durable": True, "auto_delete": False, "internal": False,
        "predeclared": False,
        "alternate": "amq.fanout", "bindings": 4, "arguments": {"alternate-exchange": "amq.fanout"}, "lasting": True,
    }  # fmt: skip
    assert [(rows[name]["predeclared"], rows[name]["lasting"]) for name in ("", "passing")] == [(True, False), (False, False)]
    bindings = list(binding_rows(queues))
    assert [row["source"] for row in bindings] == ["amq.topic"] * 2 + ["lasting"] * 4 + ["passing"] * 2
    assert [row["lasting"] for row in bindings] == [True, False, True, False, False, True, False, False]
