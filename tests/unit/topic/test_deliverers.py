"""Which kind of deliverer a consumer gets."""

from tests.support.broker_rig import BrokerRig
from toymq_py.consumer import KeyLanes, PriorityLanes


def test_the_mode_and_the_priorities_choose() -> None:
    rig = BrokerRig()
    shared = rig.subscribe("t", mode="shared")
    consumer = shared.channel.consumer
    assert consumer.lanes is None
    shared.channel.prioritize(int)
    assert isinstance(consumer.lanes, PriorityLanes)
    shared.close()
    rig.subscribe("t", mode="keyed").close()
    assert isinstance(consumer.lanes, KeyLanes), "the order of keys goes before priorities"
    rig.subscribe("t", mode="shared").close()
    assert isinstance(consumer.lanes, PriorityLanes)
