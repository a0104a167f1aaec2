"""A leader's view of the groups: where a topic is, which groups there are, and the load of each."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import cast

import pytest

from tests.support.fake_place_link import FakePlaceLink
from toymq_py.cluster import group_views
from toymq_py.errors import EtcdError, Moved, PlacementUnknown
from toymq_py.partitions import Partitioned
from toymq_py.replication.agreement import ClusterSettings, LeaderKey, Member
from toymq_py.replication.kept_places import Group, KeptPlaces, Picture, Record
from toymq_py.storage.partitions_file import StoredPartitions

MEMBER = Member("0" * 32, "b1", "b1:1", "b1:2", "b1:3", "")


def picture() -> Picture:
    found = Picture("")
    found.groups = {
        "a": Group(made=True, placed=True),
        "b": Group(made=True, leader=LeaderKey(MEMBER, 3, 4), led=MEMBER, nodes={"r": MEMBER}, load=7.4),
        "lost": Group(),
    }
    found.records = {"there": Record("b", 5), "secret": Record("b", 6)}
    return found


def test_a_topic_of_another_group_is_at_its_nodes_and_its_gateway() -> None:
    error = group_views.moved_to(picture(), "b", "there", 0.0)
    assert isinstance(error, Moved)
    assert str(error) == "b1:1 toymqs://b1:1 http://b1:3/ (group b) has the topic there"
    assert isinstance(group_views.moved_to(picture(), "none", "there", 0.0), PlacementUnknown)


@pytest.mark.parametrize(
    ("reached", "refusal", "answers"), [(True, "", True), (False, "AUTH_FAILED the secrets differ", True), (False, "", False)]
)
async def test_a_group_answers_that_takes_a_connection_or_refuses_one(reached: bool, refusal: str, answers: bool) -> None:
    links: list[FakePlaceLink] = []

    def connect(lost: Callable[[], None]) -> FakePlaceLink:
        links.append(FakePlaceLink(lost, reached=reached, refusal=refusal))
        return links[-1]

    assert await group_views.answers(connect) == answers
    assert links[0].closed


@pytest.mark.parametrize(("tls", "words"), [("", "b1:1"), ("b1:9", "b1:1 toymqs://b1:9"), (None, "b1:1 toymqs://b1:1")])
def test_only_an_address_at_which_tls_is_spoken_is_named_for_it(tls: str | None, words: str) -> None:
    """Found: each node was named with ``toymqs://``, with or without ``--tls-listen``. An older node does not report this."""
    found, member = picture(), replace(MEMBER, tls=tls)
    found.groups["b"] = replace(found.groups["b"], led=member, nodes={"r": member})
    assert str(group_views.moved_to(found, "b", "there", 0.0)) == f"{words} http://b1:3/ (group b) has the topic there"


def test_a_group_without_a_leader_is_away_once_a_failover_would_be_over() -> None:
    addresses = "b1:1 toymqs://b1:1 http://b1:3/"
    assert isinstance(group_views.moved_to(picture(), "b", "there", group_views.AWAY_S - 0.1), Moved)
    error = group_views.moved_to(picture(), "b", "there", 12.3)
    assert isinstance(error, PlacementUnknown)
    problem = "has had no leader for 12 s: look at its nodes (`toymqctl cluster --group b`)"
    assert str(error) == f"group b has the topic there, and {problem}"
    assert str(error.moved) == f"{addresses} (group b) has the topic there, and {problem}"
    assert (error.code, error.retryable) == ("PLACEMENT_UNKNOWN", True)
    error = group_views.moved_to(picture(), "b", "new", 12.3, "is to have")
    assert str(error) == f"group b is to have the topic new, and {problem}", "it has not, where CREATE has just named the group"


def test_no_topic_is_made_in_a_group_that_is_away() -> None:
    """Found: a new topic got a record in that group, and was refused in every other group until that one was back."""
    found = picture()
    found.groups["b"].placed = True
    group_views.check_placed(found, "new", "b", group_views.AWAY_S - 0.1)
    group_views.check_placed(found, "new", None, 12.3)
    with pytest.raises(PlacementUnknown, match=r"^new was not made: group b has had no leader for 12 s: look at its nodes"):
        group_views.check_placed(found, "new", "b", 12.3)


def test_an_absence_begins_when_it_is_seen_and_ends_with_a_leader() -> None:
    now = 100.0
    absences = group_views.Absences(lambda: now)
    led, left = {"b": Group(leader=LeaderKey(MEMBER, 3, 4))}, {"b": Group()}
    absences.look(led)
    now += 5.0
    assert absences.seconds("b") == 0.0
    absences.look(left)
    now += 5.0
    absences.look(left)
    now += 2.0
    assert (absences.seconds("b"), absences.seconds("unknown")) == (7.0, 0.0)
    absences.look(led)
    assert absences.seconds("b") == 0.0


def test_groups_are_described_with_the_topics_that_a_token_may_see() -> None:
    found = group_views.described(picture(), "a", ["here"], lambda topic: topic != "secret")
    assert found["topics"] == {"here": "a", "there": "b"}
    assert found["groups"]["b"] == {"leader": "b1:1", "nodes": ["b1:1"], "placed": False, "messages_s": 7}
    assert sorted(found["groups"]) == ["a", "b"]
    kept = picture()
    kept.groups["b"].settings, kept.groups["b"].in_sync = ClusterSettings("u", 3, 2), 1
    copies = group_views.described(kept, "a", [], None)["groups"]["b"]
    assert [copies[name] for name in ("in_sync", "replicas", "min_in_sync")] == [1, 3, 2], "for `toymqctl doctor`"
    assert "topics" not in group_views.described(picture(), "a", ["here"], None)


def test_the_metrics_count_topics_of_each_group() -> None:
    """Each partition counts as a topic; the partitioned topic itself does not."""
    found, whole = picture(), StoredPartitions(Partitioned("p", 3))
    found.records["p"] = Record("b", 1, whole)
    found.records["q"] = Record("a", 1, whole)
    rows = group_views.rows(found, "a", ["here", "q#0", "not-told-yet"], claims=9)
    assert rows["group_topics"] == {("a",): 3.0, ("b",): 2.0}
    assert rows["group_has_leader"] == {("b",): 1.0}, "nobody has started a node of a yet"
    served = picture()
    served.groups["a"].begun = served.groups["b"].begun = True
    served.groups["b"].leader = None
    assert group_views.rows(served, "a", ["here"], claims=9)["group_has_leader"] == {("a",): 0.0, ("b",): 0.0}
    assert (rows["group_load"][("b",)], rows["placements_total"][()]) == (7.4, 9.0)


def test_what_there_is_to_do_is_said_when_it_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    done, said, waits = iter((0, 100, 101, 300, 500)), [], 0

    class Kept:
        async def weigh(self, load: float, lease: int) -> None:
            if not said:
                said.append("lost")
                raise EtcdError("away")
            said.append(load)

    async def sleep(seconds: float) -> None:
        nonlocal waits
        assert seconds == group_views.WEIGH_S
        waits += 1
        if waits == 5:
            raise asyncio.CancelledError

    monkeypatch.setattr(group_views.asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(group_views.weigh(cast(KeptPlaces, Kept()), 1, lambda: next(done)))
    assert said == ["lost", 0.1, 19.9], "again while it was not said; 20.0 is nearly as much"
