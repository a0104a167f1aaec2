"""The end of a broker within its deadline. What clients see of it: ``test_server.py``."""

import pytest

from tests.support.broker_rig import BrokerRig


def finish(rig: BrokerRig, *, ends_in_s: float) -> list[float]:
    """When ``finish`` was over, in seconds from now; the loop runs for a minute."""
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
    """Each cut of a preallocated tail is a sync: of a thousand topics they take seconds. Recovery knows the zeros."""
    rig = BrokerRig(segment_bytes=8 << 20)
    rig.publish("t", b"x" * (1 << 20))
    rig.publish("t", b"y" * (1 << 20))
    file = rig.broker.topic("t").log.segments[-1].path
    whole = len(rig.disk.snapshot()[file])
    assert whole > rig.broker.topic("t").log.segments[-1].end, "it has a preallocated tail"
    rig.broker.stop_deliveries(ends_at=rig.clock.monotonic())
    rig.broker.close()
    assert len(rig.disk.snapshot()[file]) == whole
    rig.reopen()
    assert rig.broker.topic("t").next_id == 2
