"""Definitions at the leaders of two groups: each topic is created once, where it is placed, whichever leader comes first."""

import asyncio
import errno
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from tests.support.broker_rig import BrokerRig
from toymq_py import partition_operations
from toymq_py.cluster import group_definitions
from toymq_py.cluster.group_definitions import GroupDefinitions
from toymq_py.config.definitions import parse
from toymq_py.config.topic_definitions import TopicDefinition
from toymq_py.errors import BeingDeleted, BeingPlaced, DiskFull, Moved, NoSuchTopic, PlacementUnknown, RequestError, TopicExists
from toymq_py.partitions import Partitioned
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
    """A placement in which this group has every topic except those in ``there``."""

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
    definitions = GroupDefinitions(FILE, "defs.toml", rig.broker, None)
    await worked(rig, definitions.apply)
    assert sorted(rig.broker.topics) == ["orders", "ours"]
    assert rig.broker.topic("ours").settings.to_json() == {"visibility": 60_000}
    assert [one["consumer"] for one in rig.broker.topic("ours").describe()["consumers"]] == ["c"]
    del places.there["later"]
    await worked(rig, definitions.run)
    assert sorted(rig.broker.topics) == ["later", "orders", "ours"]
    rig.reopen()
    assert sorted(rig.broker.topics) == ["later", "orders", "ours"], "it is stored"


async def test_what_a_group_has_that_is_away_is_left_to_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    rig = BrokerRig()
    rig.broker.placement = places = Places()
    away = PlacementUnknown("group b has the topic later, and has had no leader for 9 s")
    away.moved = Moved("10.0.0.2:6789 (group b) has the topic later")
    places.there["later"] = away
    await worked(rig, GroupDefinitions(FILE, "defs.toml", rig.broker, None).apply)
    assert sorted(rig.broker.topics) == ["orders", "ours"]
    assert "topic later" not in caplog.text, "it is not looked at again"


async def test_a_topic_at_fault_is_said_and_the_others_are_made(caplog: pytest.LogCaptureFixture) -> None:
    rig = BrokerRig(max_topics=2)
    rig.broker.placement = places = Places()
    places.there.clear()
    await worked(rig, GroupDefinitions(FILE, "defs.toml", rig.broker, None).apply)
    assert len(rig.broker.topics) == 2
    assert "defs.toml: topic " in caplog.text


async def test_a_topic_that_finds_the_disk_full_is_made_when_there_is_room(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Found: its definition was skipped until the next leader took office."""
    monkeypatch.setattr(group_definitions, "AGAIN_S", 0.0)
    rig = BrokerRig()
    rig.broker.placement = places = Places()
    places.there = {"theirs": places.there["theirs"]}
    rig.disk.fail("mkdir", 1, errno.ENOSPC, sticky=True, path="topics/orders")
    definitions = GroupDefinitions(FILE, "defs.toml", rig.broker, None)
    await worked(rig, definitions.apply)
    assert "defs.toml: topic orders: " in caplog.text
    assert "orders" not in rig.broker.topics
    rig.disk.heal()
    await worked(rig, definitions.run)
    assert sorted(rig.broker.topics) == ["later", "orders", "ours"]


DIVIDED = parse('[[topic]]\nname = "jobs"\npartitions = 2\nttl = "5s"\n\n[[topic.consumer]]\nname = "c"\n', "defs.toml")


class Divider:
    """Creates partitions at the broker of a rig, once the topics that are in the way are gone."""

    def __init__(self, rig: BrokerRig, *errors: RequestError) -> None:
        self.rig = rig
        self.errors = list(errors)
        self.words: list[Mapping[str, str]] = []

    async def __call__(self, name: str, words: Mapping[str, str]) -> None:
        self.words.append(words)
        if self.errors:
            raise self.errors.pop(0)
        made: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        partition_operations.create(self.rig.broker, name, words, made.set_result)
        await made


def divided(max_topics: int = 100) -> tuple[BrokerRig, Places]:
    rig, places = BrokerRig(max_topics=max_topics), Places()
    rig.broker.placement = places
    places.placed |= {"jobs#0", "jobs#1"}
    return rig, places


async def test_partitions_are_made_at_all_groups_once_this_one_serves_and_all_have_a_leader(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(group_definitions, "AGAIN_S", 0.0)
    caplog.set_level("INFO")
    rig, _ = divided()
    divide = Divider(rig, PlacementUnknown("group b has no leader"), PlacementUnknown("etcd does not answer"))
    definitions = GroupDefinitions(DIVIDED, "defs.toml", rig.broker, divide)
    await worked(rig, definitions.apply)
    assert (divide.words, list(rig.broker.topics)) == ([], []), "other groups would have to ask this one"
    await worked(rig, definitions.run)
    assert divide.words == [{"partitions": "2", "ttl": "5000"}] * 3
    assert "defs.toml: topic jobs: group b has no leader" in caplog.text
    assert "defs.toml: + topic jobs partitions=2 ttl=5s" in caplog.text
    topics = rig.broker.topics.values()
    assert [topic.settings.to_json() for topic in topics] == [{"ttl": 5000}] * 2
    assert [[one["consumer"] for one in topic.describe()["consumers"]] for topic in topics] == [["c"]] * 2
    caplog.clear()
    await worked(rig, GroupDefinitions(DIVIDED, "defs.toml", rig.broker, divide).run)
    assert divide.words[-1] == {"partitions": "2"}, "they are there; a leader may have died before all groups had theirs"
    assert "+ topic" not in caplog.text


@pytest.mark.parametrize(
    "error",
    [
        BeingDeleted("jobs", lambda call: None, "is being made"), NoSuchTopic("jobs is being made: send it again in a moment"),
        DiskFull("no space left"),
    ],
    ids=["here", "there", "disk"],
)  # fmt: skip
async def test_partitions_that_another_leader_makes_at_the_same_time_are_not_left_to_it(
    error: RequestError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found: the partitions of this group never got their settings and consumers."""
    monkeypatch.setattr(group_definitions, "AGAIN_S", 0.0)
    rig, _ = divided()
    await worked(rig, GroupDefinitions(DIVIDED, "defs.toml", rig.broker, Divider(rig, error)).run)
    assert [[one["consumer"] for one in topic.describe()["consumers"]] for topic in rig.broker.topics.values()] == [["c"]] * 2


async def test_partitions_that_are_known_before_they_are_made_here_get_their_settings_and_consumers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Found: another leader had recorded the partitions in etcd, and this group had not created its own yet: the definition had
    nothing to apply to, and was not tried again."""
    monkeypatch.setattr(group_definitions, "AGAIN_S", 0.0)
    rig, _ = divided()

    async def divide(name: str, words: Mapping[str, str]) -> None:
        if name not in rig.broker.partitioned.by_name:
            rig.broker.partitioned.by_name[name] = Partitioned(name, 2, {"ttl": "5000"})
            raise NoSuchTopic("jobs is being made: send it again in a moment")
        await made(name, words)

    made = Divider(rig)
    await worked(rig, GroupDefinitions(DIVIDED, "defs.toml", rig.broker, divide).run)
    assert [[one["consumer"] for one in topic.describe()["consumers"]] for topic in rig.broker.topics.values()] == [["c"]] * 2


async def test_a_partition_keeps_its_own_settings_when_each_topic_is_applied_alone() -> None:
    """Topics are applied one by one when one of them is invalid. Found: the settings of the whole topic then replaced those of
    a partition."""
    rig, _ = divided(max_topics=2)
    await worked(rig, lambda: Divider(rig)("jobs", {"partitions": "2", "ttl": "5000"}))
    own = {"jobs#1": TopicDefinition({"ttl": "9000"}, {})}
    wanted = replace(DIVIDED, topics={**own, **DIVIDED.topics, "one-too-many": TopicDefinition({}, {})})
    await worked(rig, GroupDefinitions(wanted, "defs.toml", rig.broker, Divider(rig)).apply)
    assert [topic.settings.to_json() for topic in rig.broker.topics.values()] == [{"ttl": 5000}, {"ttl": 9000}]


async def test_what_cannot_be_is_said_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(group_definitions, "AGAIN_S", 0.0)
    rig, _ = divided()
    divide = Divider(rig, TopicExists("jobs exists with partitions=3, not 2: the number is fixed at creation"))
    await worked(rig, GroupDefinitions(DIVIDED, "defs.toml", rig.broker, divide).run)
    assert (len(divide.words), list(rig.broker.topics)) == (1, [])
    assert "ERROR" in caplog.text
    assert "defs.toml: topic jobs: jobs exists with partitions=3, not 2" in caplog.text


async def test_where_nodes_prove_nothing_no_partitions_are_made_and_those_that_are_there_get_their_settings(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig, _ = divided()
    await worked(rig, GroupDefinitions(DIVIDED, "defs.toml", rig.broker, None).apply)
    assert not rig.broker.topics
    remedy = "give all nodes --replicate-token-file or certificates, or call `toymqctl create jobs --partitions 2`"
    assert f"defs.toml: topic jobs: other groups do not know this for a node: {remedy}" in caplog.text
    await worked(rig, lambda: Divider(rig)("jobs", {"partitions": "2"}))
    await worked(rig, GroupDefinitions(DIVIDED, "defs.toml", rig.broker, None).apply)
    assert [topic.settings.to_json() for topic in rig.broker.topics.values()] == [{"ttl": 5000}] * 2
