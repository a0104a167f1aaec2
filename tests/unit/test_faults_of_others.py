"""Faults of other brokers whose tests need a clock that jumps or a disk that counts. See docs/faults-of-others.md."""

from collections import Counter

import pytest

from tests.support.broker_rig import BrokerRig
from tests.support.call_counts import counted_calls

HOUR_S = 3600


def test_an_offline_consumer_collects_no_attempts() -> None:
    rig = BrokerRig()
    rig.publish("t", b"x")
    subscription = rig.subscribe("t", visibility_s=5)
    assert rig.take(subscription) == [(0, 1)]
    subscription.close()
    for _ in range(10):
        rig.advance(HOUR_S)
    assert rig.take(rig.subscribe("t")) == [(0, 2)], "it was away for ten hours and saw it once"


def work_of_cycles(depth: int, cycles: int = 50) -> tuple[int, Counter[str]]:
    """Return the function calls, and disk calls, for taking and acking so many messages one by one from a backlog of
    ``depth``."""
    rig = BrokerRig(segment_bytes=1 << 26)  # one segment: retention looks at all of them, but not often (test_retention.py)
    for _ in range(depth // 1000):
        rig.publish("t", *[b"." * 100] * 1000)
    subscription = rig.subscribe("t", window=1)
    rig.disk.trace.clear()
    with counted_calls() as counted:
        for msg_id in range(cycles):
            assert rig.take(subscription) == [(msg_id, 1)]
            assert rig.ack("t", msg_id, msg_id) == 1
    return counted.calls, Counter(op for op, _, _ in rig.disk.trace)


def test_a_message_costs_the_same_at_any_depth() -> None:
    calls, disk = work_of_cycles(1000)
    deep_calls, deep_disk = work_of_cycles(50_000)
    assert deep_calls == pytest.approx(calls, rel=0.1)
    assert not deep_disk["listdir"]
    assert deep_disk.total() == pytest.approx(disk.total(), rel=0.1), f"{disk}, then {deep_disk}"
