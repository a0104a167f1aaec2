"""Which group has a topic, and the topics of the groups that answer."""

from typing import Any, cast

import pytest

from toymq import sync
from toymq_py.errors import BadArgument, NoSuchTopic, PlacementUnknown
from toymq_py.placement import worker_of
from toymqctl.places import (
    fail_without,
    figures_of_those_there,
    groups_by_topic,
    place_of,
    places_by_topic,
    reachable_topics,
    stats_of_those_there,
    topics_of_those_there,
)

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
    assert place_of(groups_by_topic(CLUSTER), topic) == group
    assert places_by_topic(CLUSTER, [topic]) == ("group", groups_by_topic(CLUSTER))


def test_a_broker_without_groups_has_none() -> None:
    alone = {"worker": 0, "workers": [["h:1"]]}
    assert groups_by_topic(alone) == groups_by_topic({}) == {}
    assert places_by_topic(alone, ["t"]) == places_by_topic({}, ["t"]) == ("", {})


def test_the_worker_of_a_topic() -> None:
    names = ["t", *(f"p#{number}" for number in range(6))]
    kind, places = places_by_topic({"worker": 1, "workers": [["h:1"], ["h:2"]]}, names)
    assert kind == "worker"
    assert {name: place_of(places, name) for name in names} == {name: str(worker_of(name, 2)) for name in names}
    assert place_of(places, "t.dlq") == str(worker_of("t", 2))
    assert place_of(places, "p#0-5") == place_of(places, "p") == "0, 1"


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


def test_an_older_broker_is_asked_for_the_figures_of_all() -> None:
    class Client:
        def _ask(self, request: Any) -> Any:
            raise BadArgument("unknown option partial")

        def stats(self) -> dict[str, Any]:
            return {"topics": []}

    assert figures_of_those_there(cast(sync.Client, Client())) == {"topics": []}


class WithoutOne:
    """A client of a broker of which one worker does not answer."""

    def __init__(self) -> None:
        self.away = [{"place": "worker 1", "why": "does not answer within 2 s"}]

    def stats(self) -> dict[str, Any]:
        raise PlacementUnknown("worker 1 does not answer")

    def topics(self, pattern: str | None) -> list[dict[str, Any]]:
        raise PlacementUnknown("worker 1 does not answer")

    def _ask(self, request: Any) -> Any:
        return {"topics": [{"topic": name} for name in ("mail", "orders.a", "orders.b")], "away": self.away}


@pytest.mark.parametrize(
    ("pattern", "listed"),
    [(None, ["mail", "orders.a", "orders.b"]), ("orders.*", ["orders.a", "orders.b"]), ("mail", ["mail"]), ("no", [])],
)
def test_without_a_worker_the_topics_and_figures_of_the_others_are_shown_and_what_is_missing_is_said(
    capsys: pytest.CaptureFixture[str], pattern: str | None, listed: list[str]
) -> None:
    """Found: lists were refused as a whole."""
    client = cast(sync.Client, WithoutOne())
    found, away = topics_of_those_there(client, pattern)
    assert [one["topic"] for one in found] == listed
    assert stats_of_those_there(client)["away"] == away
    with pytest.raises(SystemExit) as ended:
        fail_without(away, "without")
    assert ended.value.code == 1
    assert capsys.readouterr().err == "toymqctl: without worker 1, which does not answer within 2 s\n"
    fail_without((), "without")
