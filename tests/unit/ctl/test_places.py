"""Which group has a topic, and the topics of groups that are there."""

from typing import Any, cast

import pytest

from toymq import sync
from toymq_py.errors import NoSuchTopic, PlacementUnknown
from toymqctl.places import group_of, groups_by_topic, reachable_topics

CLUSTER = {
    "group": "a",
    "groups": {"a": {"leader": "a1:1"}, "b": {"leader": None}},
    "topics": {"plain": "a", "gone": "b", "parts": "a", "parts#0": "a", "parts#1": "b"},
}


@pytest.mark.parametrize(
    ("topic", "group"),
    [
        ("plain", "a"), ("plain.dlq", "a"), ("gone", "b"), ("parts", "a, b"), ("parts#1", "b"), ("parts#1.dlq", "b"),
        ("parts#0-1", "a, b"), ("parts#0-1.dlq", "a, b"), ("no", None),
    ],
)  # fmt: skip
def test_the_group_of_a_topic(topic: str, group: str | None) -> None:
    assert group_of(groups_by_topic(CLUSTER), topic) == group


def test_a_broker_without_groups_has_none() -> None:
    assert groups_by_topic({"worker": 0, "workers": [["h:1"]]}) == groups_by_topic({}) == {}


def test_the_topics_of_groups_that_have_a_leader_are_described() -> None:
    asked = []

    class Client:
        def describe(self, topic: str) -> dict[str, Any]:
            asked.append(topic)
            if topic == "plain.dlq":
                raise NoSuchTopic("none")
            if topic == "parts#0":
                raise PlacementUnknown("just now")
            return {"topic": topic}

    found = reachable_topics(cast(sync.Client, Client()), CLUSTER)
    assert [one["topic"] for one in found] == ["plain"]
    assert asked == ["plain", "plain.dlq", "parts#0"], "not the whole, which needs all groups"
