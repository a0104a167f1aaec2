"""What is sent to whoever looks at the dashboard, and what is not."""

import json
import random
from typing import Any

import pytest

from tests.support.http_rig import gateway
from tests.support.sim_disk import SimDisk
from toymq_py.gateway import snapshots
from toymq_py.gateway.snapshots import SAME_MOMENT_MS, timeless


def described(age_s: float) -> dict[str, Any]:
    return {"topic": "t", "consumers": [{"consumer": "c", "backlog": 1, "oldest_unacked_age_s": age_s}]}


def test_the_age_of_what_lies_still_changes_nothing() -> None:
    first = timeless(described(2.0), None, 10_000)
    assert first["consumers"] == [{"consumer": "c", "backlog": 1, "oldest_unacked_at_ms": 8_000}]
    later = timeless(described(3.001), first, 11_000 + SAME_MOMENT_MS)
    assert later == first, "the same moment, as exact as it can be known"
    other = timeless(described(3.0), later, 11_000 + SAME_MOMENT_MS + 1)
    assert other["consumers"][0]["oldest_unacked_at_ms"] == 8_051, "another message is the oldest one"
    assert timeless(described(0.0), other, 12_000)["consumers"][0]["oldest_unacked_at_ms"] is None, "there is none"


async def test_topics_that_lag_are_sent_when_something_happens_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "INTERVAL_S", 0.0)
    async with gateway("/data/d", fs=SimDisk(random.Random(1))) as rig:
        for topic in ("t", "u"):
            await rig.publish(topic, "a", "b")
            await rig.lease(topic)
        assert rig.gateway is not None
        events = rig.gateway.snapshots.watch()
        seen = []
        for count in range(4):
            if count == 2:
                await rig.publish("u", "c")
            event = json.loads((await anext(events)).partition(b"data: ")[2])
            seen.append([topic["topic"] for topic in event["topics"]])
            assert event["now_ms"] > 0
        assert seen == [["t", "u"], [], ["u"], []]
