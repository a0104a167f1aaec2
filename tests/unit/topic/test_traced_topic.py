"""A topic that reports the fate of its messages to a tracer."""

from collections.abc import Sequence

from tests.support.broker_rig import BrokerRig
from toymq_py.metrics import Metrics
from toymq_py.records import IdRange
from toymq_py.topic import Appended, Delivery, TracedTopic, Tracer


class Told(Tracer):
    """A tracer that records its calls."""

    def __init__(self) -> None:
        self.events: list[object] = []

    def exemplify(self, metrics: Metrics) -> None:
        self.events.append("exemplify")

    def appended(self, topic: str, outcomes: Sequence[Appended], headers: Sequence[bytes]) -> None:
        self.events.append(("appended", topic, outcomes[0].first_id, list(headers)))

    def synced(self, seconds: float) -> None:
        self.events.append("synced")

    def delivered(self, delivery: Delivery) -> None:
        self.events.append(("delivered", delivery.first_id, delivery.last_id))

    def settled(self, what: str, topic: str, consumer: str, ids: Sequence[IdRange]) -> None:
        self.events.append((what, topic, consumer, list(ids)))


def traced() -> tuple[BrokerRig, Told]:
    told = Told()
    rig = BrokerRig(tracer=lambda clock: told)
    assert told.events == ["exemplify"]
    told.events.clear()
    return rig, told


def test_each_step_of_a_message_with_headers_is_told_in_order() -> None:
    rig, told = traced()
    rig.publish("t", b"x", headers=b"traceparent: 1\n")
    assert isinstance(rig.broker.topic("t"), TracedTopic)
    rig.take(rig.subscribe("t"))
    rig.nack("t", 0, 0)
    rig.take(rig.subscribe("t"))
    rig.ack("t", 0, 0)
    assert told.events == [
        ("appended", "t", 0, [b"traceparent: 1\n"]),
        "synced",
        ("delivered", 0, 0),
        ("nack", "t", "c", [(0, 0)]),
        ("delivered", 0, 0),
        ("ack", "t", "c", [(0, 0)]),
    ]


def test_without_headers_there_is_nothing_to_follow() -> None:
    rig, told = traced()
    rig.publish("t", b"x")
    rig.take(rig.subscribe("t"))
    assert told.events == ["synced"]


def test_an_ack_that_takes_nothing_is_not_told() -> None:
    rig, told = traced()
    rig.publish("t", b"x")
    rig.subscribe("t")
    told.events.clear()
    rig.broker.topic("t").ack("c", [(0, 0)])
    rig.broker.topic("t").nack("c", [(0, 0)], None)
    assert rig.broker.topic("t").channel("c").ack_each([0, 1]) == [0, 0]
    assert told.events == []


def test_a_run_of_acks_tells_those_that_took_something() -> None:
    rig, told = traced()
    rig.publish("t", b"x")
    rig.publish("t", b"y")
    rig.take(rig.subscribe("t"))
    told.events.clear()
    assert rig.broker.topic("t").channel("c").ack_each([0, 0, 1, 7]) == [1, 0, 1, 0]
    assert told.events == [("ack", "t", "c", [(0, 0), (1, 1)])]
