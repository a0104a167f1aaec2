"""Settling many ids at once, with an answer for each; ``tests/property/test_settlement_runs.py`` compares with one by one."""

from tests.support.broker_rig import BrokerRig
from toymq_py.topic.settlement import ack_each, settle_each


def test_each_id_has_its_answer() -> None:
    rig = BrokerRig()
    rig.publish("t", *[b"x"] * 6)
    session = rig.subscribe("t", window=4)
    session.number = 7
    rig.take(session)
    consumer = rig.broker.topic("t").channel("c").consumer
    assert ack_each(consumer, [0, 1, 1, 5]) == [1, 1, 0, 0]
    assert settle_each(consumer, [2, 5, 3], 7, lambda ids: sum(last - first + 1 for first, last in ids)) == [1, 0, 1]
    assert settle_each(consumer, [2, 3], 8, lambda ids: 0) == [0, 0], "of another lease"
