"""Topics with failed messages, before and after they become dead letters."""

from tests.support.broker_rig import BrokerRig


def poisoned(**options: int) -> BrokerRig:
    """Return a broker whose topic has message 0 delivered once to consumer "c", inflight in the subscription ``rig.sub``."""
    rig = BrokerRig(**{"max_attempts": 3} | options)
    rig.publish("t", b"poison", key=b"k")
    rig.sub = rig.subscribe("t")
    assert rig.take(rig.sub) == [(0, 1)]
    return rig


def described(rig: BrokerRig, topic: str = "t") -> dict[str, int]:
    (consumer,) = rig.broker.topic(topic).describe()["consumers"]
    return consumer


def dead(count: int = 1, **options: int) -> BrokerRig:
    """Return a broker with ``count`` dead letters of consumer "c"; the consumer "other" has acked everything."""
    rig = BrokerRig(**{"max_attempts": 1} | options)
    rig.broker.topic_or_new("t").publisher.publish(
        [b"k%d" % n for n in range(count)], [b"p%d" % n for n in range(count)], [b"a: %d\n" % n for n in range(count)]
    )
    rig.loop.drain()
    rig.sub, rig.other = rig.subscribe("t", window=count), rig.subscribe("t", "other", window=count)
    assert len(rig.take(rig.sub)) == len(rig.take(rig.other)) == count
    rig.ack("t", 0, count - 1, "other")
    rig.nack("t", 0, count - 1)
    assert len(rig.records("t.dlq")) == count
    return rig
