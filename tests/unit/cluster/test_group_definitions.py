"""Definitions at the leaders of two groups: each topic is made once, where it is placed, whoever comes first."""

import asyncio
from collections.abc import Callable

import pytest

from tests.support.broker_rig import BrokerRig
from toymq_py import partition_operations
from toymq_py.cluster import group_definitions
from toymq_py.cluster.group_definitions import GroupDefinitions
from toymq_py.config.definitions import parse
from toymq_py.errors import BeingPlaced, Moved, PlacementUnknown, RequestError
from toymq_py.placement import Placement

FILE = parse(
    """
    [[topic]]
    name = "ours"
    visibility = 60000

    [[topic.consumer]]
    name = "c"

    [[topic]]
    name = "theirs"

    [[topic]]
    name = "later"

    [[topic]]
    name = "orders"
    """,
    "defs.toml",
)


class Places(Placement):
    """A group, which has what ``there`` does not say, once it was asked."""

    is_divided, passes_on = True, False

    def __init__(self) -> None:
        super().__init__()
        self.there: dict[str, RequestError] = {
            "theirs": Moved("10.0.0.2:6789 (group b) has the topic theirs"), "later": PlacementUnknown("etcd does not answer"),
        }  # fmt: skip
        self.placed: set[str] = set()

    def moved(self, topic: str) -> RequestError | None:
        return None

    def admit(self, topic: str, group: str | None = None) -> None:
        if (error := self.there.get(topic)) is not None:
            raise error
        if topic not in self.placed:
            self.placed.add(topic)
            raise BeingPlaced(topic, lambda call: asyncio.get_running_loop().call_soon(call) and None)


async def worked(rig: BrokerRig, work: Callable[[], object]) -> None:
    task = asyncio.ensure_future(work())  # type: ignore[call-overload]
    while not task.done():
        await asyncio.sleep(0)
        rig.advance(0.1)
    await task


async def test_what_is_placed_here_is_made_and_the_rest_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_definitions, "AGAIN_S", 0.0)
    rig, places = BrokerRig(), Places()
    rig.broker.placement = places
    definitions = GroupDefinitions(FILE, "defs.toml", rig.broker)
    await worked(rig, definitions.apply)
    assert sorted(rig.broker.topics) == ["orders", "ours"]
    assert rig.broker.topic("ours").settings.to_json() == {"visibility": 60_000}
    assert [one["consumer"] for one in rig.broker.topic("ours").describe()["consumers"]] == ["c"]
    del places.there["later"]
    await worked(rig, definitions.run)
    assert sorted(rig.broker.topics) == ["later", "orders", "ours"]
    rig.reopen()
    assert sorted(rig.broker.topics) == ["later", "orders", "ours"], "it is stored"


async def test_a_topic_at_fault_is_said_and_the_others_are_made(caplog: pytest.LogCaptureFixture) -> None:
    rig = BrokerRig(max_topics=2)
    rig.broker.placement = places = Places()
    places.there.clear()
    await worked(rig, GroupDefinitions(FILE, "defs.toml", rig.broker).apply)
    assert len(rig.broker.topics) == 2
    assert "defs.toml: topic " in caplog.text


async def test_partitions_are_not_made_and_those_that_are_there_get_their_settings(caplog: pytest.LogCaptureFixture) -> None:
    rig, places = BrokerRig(), Places()
    rig.broker.placement = places
    wanted = parse('[[topic]]\nname = "jobs"\npartitions = 2\nttl = "5s"\n', "defs.toml")
    await worked(rig, GroupDefinitions(wanted, "defs.toml", rig.broker).apply)
    assert not rig.broker.topics
    assert "`toymqctl create jobs --partitions 2` does" in caplog.text
    places.placed |= {"jobs#0", "jobs#1"}
    made = asyncio.get_running_loop().create_future()
    partition_operations.create(rig.broker, "jobs", {"partitions": "2"}, made.set_result)
    await worked(rig, lambda: made)
    await worked(rig, GroupDefinitions(wanted, "defs.toml", rig.broker).apply)
    assert [topic.settings.to_json() for topic in rig.broker.topics.values()] == [{"ttl": 5000}] * 2
