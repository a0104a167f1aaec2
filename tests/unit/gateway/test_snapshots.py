"""The data that is sent to each viewer of the dashboard, and what is left out."""

import json
import random
from typing import Any

import pytest

from tests.support.http_rig import gateway
from tests.support.sim_disk import SimDisk
from toymq_py.gateway import snapshots
from toymq_py.gateway.snapshots import SAME_MOMENT_MS, judge_slow, timeless


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


def test_consumers_of_topics_elsewhere_are_slow_by_their_age() -> None:
    """Found: on the dashboard of another worker or group, consumers were never slow, and a consumer without a session was not
    reported."""

    def seen(at_ms: int | None, now_ms: int, before: dict[str, Any] | None = None) -> dict[str, Any]:
        item = {"consumers": [{"consumer": "c", "oldest_unacked_at_ms": at_ms}]}
        judge_slow(item, before, now_ms)
        return item

    def since_ms(item: dict[str, Any]) -> int | None:
        return item["consumers"][0]["slow_since_ms"]  # type: ignore[no-any-return]

    assert since_ms(seen(None, 0)) is None
    assert since_ms(seen(1000, 61_000)) is None, "a minute is not more than a minute"
    slow = seen(1000, 61_001)
    assert since_ms(slow) == 61_000
    assert since_ms(seen(30_000, 100_000, slow)) == 61_000, "another message is the oldest, it is as slow as before"
    assert since_ms(seen(90_000, 110_000, slow)) is None


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
