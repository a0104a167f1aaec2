"""Data of other workers and groups: their last answers, which of them are out of date, and which never came."""

import asyncio
from collections.abc import Callable
from typing import Any

from tests.support.broker_rig import BrokerRig
from toymq_py.errors import PlacementUnknown
from toymq_py.gateway.elsewhere import OLD_S, Elsewhere
from toymq_py.partitions import Partitioned
from toymq_py.placement import Place, Placement, worker_of

T0_MS = 1_000_000


class Groups(Placement):
    """Group a, which is this one, and groups b and c. ``problem``: of b."""

    is_divided, passes_on = True, False
    here: Place = "a"
    problem = ""

    def __init__(self) -> None:
        super().__init__()
        self.records = {"b1": "b", "b2": "b", "c1": "c", "here": "a", "w": "a", "w#0": "b", "w#1": "c"}

    def places(self) -> list[Place]:
        return ["a", "b", "c"]

    def place_of(self, topic: str) -> Place:
        return self.records[topic]

    def problem_of(self, place: Place) -> str:
        return self.problem if place == "b" else ""

    def described(self, sees: Callable[[str], bool] | None) -> dict[str, Any]:
        return {"topics": self.records}


class Asked:
    """Workers or groups that answer, or not, as a test says; the test moves their clocks."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.groups = Groups()
        self.broker = BrokerRig().broker
        self.broker.placement = self.groups
        self.loop = asyncio.get_running_loop()
        self.loop.time = lambda: self.now_s  # type: ignore[method-assign]
        self.elsewhere = Elsewhere(self.broker, self, self.loop)
        self.elsewhere.ask = self.ask
        self.said = {"b": ["b1", "w#0"], "c": ["c1", "w#1"]}
        self.asked: list[Place] = []
        self.silent: set[Place] = set()

    def wall_ns(self) -> int:
        return round((T0_MS + self.now_s * 1000) * 1e6)

    def monotonic_ns(self) -> int:
        return round(self.now_s * 1e9)

    async def ask(self, place: Place) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        self.asked.append(place)
        if place in self.silent:
            raise PlacementUnknown(f"group {place} does not answer: try again")
        topics = [{"topic": name, "bytes": 7, "consumers": []} for name in self.said[str(place)]]
        return {"publish_total": 5, "connections": 2}, topics

    async def shown(self) -> dict[str, Any]:
        """Return ``as_of_ms`` of each topic, or "fresh" where it is absent."""
        await self.elsewhere.look()
        return {topic["topic"]: topic.get("as_of_ms", "fresh") for topic in self.elsewhere.topics()}


async def test_topics_of_a_group_that_is_away_are_old_and_those_of_the_others_are_not() -> None:
    """Found: while one group was down, the figures of all groups stood still without a note."""
    asked = Asked()
    assert await asked.shown() == dict.fromkeys(("b1", "c1", "w#0", "w#1"), "fresh")
    asked.silent, asked.now_s = {"b"}, OLD_S - 0.5
    assert await asked.shown() == dict.fromkeys(("b1", "c1", "w#0", "w#1"), "fresh"), "a failover takes so long"
    assert asked.elsewhere.away() == []
    asked.now_s = OLD_S
    asked.said["c"].append("c2")
    assert await asked.shown() == {"b1": T0_MS, "b2": None, "c1": "fresh", "c2": "fresh", "w#0": T0_MS, "w#1": "fresh"}
    assert asked.elsewhere.away() == [{"place": "group b", "why": "does not answer", "as_of_ms": T0_MS}]
    assert asked.elsewhere.stats() == [{"publish_total": 5}, {"publish_total": 5, "connections": 2}], "its counters stand"
    asked.silent = set()
    assert await asked.shown() == dict.fromkeys(("b1", "c1", "c2", "w#0", "w#1"), "fresh")
    assert asked.elsewhere.away() == []


async def test_topics_of_a_group_that_nobody_has_heard_are_named_and_it_is_not_asked_while_it_has_no_leader() -> None:
    """Found: these topics were left out without a note."""
    asked = Asked()
    asked.groups.problem = "has had no leader for 9 s: look at its nodes"
    assert await asked.shown() == {"b1": None, "b2": None, "c1": "fresh", "w#0": None, "w#1": "fresh"}
    assert asked.elsewhere.away() == [{"place": "group b", "why": asked.groups.problem, "as_of_ms": None}]
    assert asked.asked == ["c"]
    assert [topic for topic in asked.elsewhere.topics() if topic["topic"] == "b1"] == [
        {"topic": "b1", "as_of_ms": None, "heard_ms": 0, "consumers": []},
    ]  # fmt: skip


async def test_a_topic_that_has_moved_is_shown_where_it_is() -> None:
    asked = Asked()
    await asked.shown()
    asked.silent, asked.now_s = {"b"}, OLD_S
    asked.groups.records["b1"] = "c"
    asked.said["c"] = ["b1", "c1", "w#1"]
    assert await asked.shown() == {"b1": "fresh", "b2": None, "c1": "fresh", "w#0": T0_MS, "w#1": "fresh"}


async def test_without_other_places_nothing_is_elsewhere() -> None:
    asked = Asked()
    asked.elsewhere.ask = None
    assert await asked.shown() == {}
    assert (asked.elsewhere.away(), asked.elsewhere.stats(), asked.asked) == ([], [], [])


async def test_partitions_of_a_worker_that_nobody_has_heard_are_named_and_so_is_its_process() -> None:
    """Found: on a page opened while a worker hung, a topic with six partitions had four."""
    asked = Asked()
    whole = Partitioned("jobs", 6)
    asked.broker.partitioned.by_name["jobs"] = whole
    asked.broker.placement = Placement(0, ("h:1", "h:2"), pids=[70, 71])

    async def hangs(place: Place) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        raise PlacementUnknown("worker 1 does not answer (in time): try again")

    asked.elsewhere.ask = hangs
    there = sorted(name for name in whole.names if worker_of(name, 2) == 1)
    assert 0 < len(there) < 6
    assert await asked.shown() == dict.fromkeys(there)
    away = {"place": "worker 1", "why": "does not answer (in time)", "as_of_ms": None, "pid": 71}
    assert asked.elsewhere.away() == [away]
    asked.broker.placement = Placement(0, ("h:1", "h:2"), pids=[70, 0])
    assert "pid" not in asked.elsewhere.away()[0], "it is being started"
