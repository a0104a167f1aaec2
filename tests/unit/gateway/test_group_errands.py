"""What the gateway of a group shows of other groups: lists of all, and the last known data of one that is down."""

import json
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support import passing_rig
from tests.support.http_rig import HttpRig, gateway, refused
from tests.support.sim_disk import SimDisk
from toymq_py.errors import PlacementUnknown
from toymq_py.gateway import snapshots
from toymq_py.gateway.group_errands import GroupErrands
from toymq_py.placement import Place
from toymq_py.session import Errands

THERE = {"topic": "there", "consumers": [{"consumer": "c", "backlog": 1, "oldest_unacked_age_s": 2.0}]}


class Groups(passing_rig.Groups):
    """Two groups, of which a is this one."""

    def place_of(self, topic: str) -> Place:
        return "b" if topic == "there" else "a"

    def moved(self, topic: str) -> None:
        return None


class Asked(Errands):
    """Two groups: this one, and one with a topic; ``away``: the other one does not answer."""

    def __init__(self, rig: HttpRig) -> None:
        assert rig.gateway is not None
        self._rig = rig.gateway
        self.away = False

    async def stats(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        topics = await self.topics(None)
        return {**self._rig.broker.stats(), "publish_total": 77}, topics

    async def topics(self, pattern: str | None) -> list[dict[str, Any]]:
        return [*self._rig.broker.describe(pattern), *(await self.stats_of("b"))[1]]

    async def stats_of(self, group: Place) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        if self.away:
            raise PlacementUnknown("group b does not answer, so its topics are not known: try again")
        return self._rig.broker.stats(), [json.loads(json.dumps(THERE))]


@pytest.fixture
async def asked(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[HttpRig, Asked]]:
    monkeypatch.setattr(snapshots, "INTERVAL_S", 0.01)
    async with gateway("/data/d", fs=SimDisk(random.Random(1))) as rig:
        assert rig.gateway is not None
        errands = Asked(rig)
        as_asked: GroupErrands = errands
        rig.gateway.errands = as_asked
        rig.gateway.snapshots.elsewhere.ask = as_asked.stats_of
        rig.gateway.broker.placement = Groups()
        await rig.publish("here", "a")
        yield rig, errands


async def test_lists_have_the_topics_of_all_groups_or_are_refused(asked: tuple[HttpRig, Asked]) -> None:
    rig, errands = asked
    assert [one["topic"] for one in (await rig.ask("GET", "/v1/topics")).json()["topics"]] == ["here", "there"]
    assert (await rig.ask("GET", "/v1/stats")).json()["publish_total"] == 77
    errands.away = True
    refused(await rig.ask("GET", "/v1/topics"), 503, "PLACEMENT_UNKNOWN")


async def test_the_dashboard_goes_on_with_what_was_told_last(asked: tuple[HttpRig, Asked]) -> None:
    rig, errands = asked
    assert rig.gateway is not None
    events = rig.gateway.snapshots.watch()
    first = json.loads((await anext(events)).partition(b"data: ")[2])
    assert [one["topic"] for one in first["topics"]] == ["here", "there"]
    errands.away = True
    await rig.publish("here", "b")
    change = json.loads((await anext(events)).partition(b"data: ")[2])
    assert {"here"} <= {one["topic"] for one in change["topics"]} <= {"here", "there"}, "ages change on a busy machine"
    assert change["gone"] == []
    assert [(one["topic"], one["group"]) for one in first["topics"]] == [("here", "a"), ("there", "b")]
