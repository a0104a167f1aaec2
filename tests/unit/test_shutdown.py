"""The end of a broker within its deadline. Its effect on clients: ``test_server.py``."""

import pytest

from tests.support.broker_rig import BrokerRig
from toymq_py.subscription import PatternSubscription


def finish(rig: BrokerRig, *, ends_in_s: float) -> list[float]:
    """Run ``finish``, and the loop for a minute. Returns: when it was over, in seconds from now."""
    began = rig.clock.monotonic()
    rig.broker.stop_deliveries(ends_at=began + ends_in_s)
    over: list[float] = []
    rig.broker.finish(lambda: over.append(round(rig.clock.monotonic() - began, 6)))
    rig.loop.advance(60)
    return over


def test_a_shutdown_is_over_as_soon_as_all_is_stored() -> None:
    rig = BrokerRig()
    rig.publish("t", b"x")
    rig.subscribe("t")
    assert finish(rig, ends_in_s=5) == [0.0], "it does not wait for its deadline, and tells it once"


def test_a_shutdown_is_over_at_its_deadline_whatever_the_disk_does(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig = BrokerRig()
    rig.publish("t", b"x")
    rig.subscribe("t")
    monkeypatch.setattr(rig.loop, "offload", lambda job, done: None)
    assert finish(rig, ends_in_s=5) == [5.0]
    assert "0 topics have commits at the disk, 1 consumer states are not stored" in caplog.text
    rig.broker.close()
    rig.reopen()
    assert rig.broker.topic("t").next_id == 1


def test_a_broker_whose_deadline_is_over_closes_its_files_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cutting a preallocated tail is a sync: for a thousand topics that takes seconds. Recovery recognizes the zeros."""
    rig = BrokerRig(segment_bytes=8 << 20)
    rig.publish("t", b"x" * (1 << 20))
    rig.publish("t", b"y" * (1 << 20))
    rig.publish("t", b"z")
    file = rig.broker.topic("t").log.segments[-1].path
    whole = len(rig.disk.snapshot()[file])
    assert whole > rig.broker.topic("t").log.segments[-1].end, "it has a preallocated tail"
    rig.broker.stop_deliveries(ends_at=rig.clock.monotonic())
    rig.broker.close()
    assert len(rig.disk.snapshot()[file]) == whole
    rig.reopen()
    assert rig.broker.topic("t").next_id == 3


@pytest.mark.parametrize("pattern", [False, True], ids=["a topic", "a pattern"])
@pytest.mark.parametrize("killed", [False, True], ids=["stopped", "UNSUB, then killed"])
def test_what_no_attempt_is_counts_none_however_long_it_was_held(pattern: bool, killed: bool) -> None:
    """Found: the offsets on the disk had the attempt that a kill would count, and were not written again: ADR 0088 held only
    for messages delivered in the last 100 ms before the end of the broker or the subscription."""
    rig = BrokerRig()
    rig.publish("a.t", b"x")
    held = rig.follow("a.*") if pattern else rig.subscribe("a.t")
    assert rig.take(held) == [(0, 1)]
    rig.nack("a.t", 0, 0, delay_s=0.0)
    rig.loop.advance(0)
    assert rig.take(held) == [(0, 2)]
    rig.flush("a.t")
    if killed:
        lessee = held if isinstance(held, PatternSubscription) else held.lessee
        lessee.uncounted = True
        held.close()
        rig.advance(1)
    else:
        finish(rig, ends_in_s=5)
    rig.reopen(power_cut=killed)
    assert rig.take(rig.subscribe("a.t")) == [(0, 2)]
