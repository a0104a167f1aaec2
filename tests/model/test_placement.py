"""Placement of topics in groups: its promises, and the tables of docs/scale.md."""

import random

import pytest

from tests.model.placement import (
    BALANCED,
    SHARE_OF_A_TOPIC,
    Cluster,
    Topic,
    fail_over,
    failovers,
    filled,
    rows,
    topics_of,
)
from tests.support.broker_process import ROOT
from toymq_py.placement import BOUND, score

COUNT, GROUPS = 4000, 20


@pytest.fixture
def cluster() -> Cluster:
    return filled(COUNT, GROUPS, 1, bounded=True, partitions=True)


def test_a_seed_is_a_cluster(cluster: Cluster) -> None:
    again = filled(COUNT, GROUPS, 1, bounded=True, partitions=True)
    assert (again.place, again.groups) == (cluster.place, cluster.groups)
    assert filled(COUNT, GROUPS, 2, bounded=True, partitions=True).place != cluster.place


def test_the_load_of_each_group_is_that_of_its_topics(cluster: Cluster) -> None:
    cluster.add_group()
    cluster.balance()
    cluster.remove_group(0)
    members = cluster.members()
    assert sum(map(len, members.values())) == len(cluster.place)
    for group, topics in members.items():
        assert sum(cluster.loads[topic] for topic in topics) == pytest.approx(cluster.groups[group])


def test_a_new_topic_never_goes_to_a_group_above_the_bound() -> None:
    cluster = Cluster()
    for _ in range(GROUPS):
        cluster.add_group()
    for topic in topics_of(COUNT, GROUPS, random.Random(1), partitions=True):
        group = cluster.create(topic)
        least = min(load for other, load in cluster.groups.items() if other != group)
        assert cluster.groups[group] <= BOUND * cluster.mean() + 1e-9 or cluster.groups[group] - topic.load <= least


def test_without_skew_the_hash_decides() -> None:
    """A topic that is created again goes to its old group, as long as that has room."""
    cluster = Cluster()
    for _ in range(4):
        cluster.add_group()
    for number in range(400):
        cluster.create(Topic(f"t{number}", 1.0))
    first = sum(cluster.place[name] == max(range(4), key=lambda group: score(group, name)) for name in cluster.place)
    assert first > 350


def test_what_makes_groups_even() -> None:
    by_hash = filled(COUNT, GROUPS, 1, bounded=False, partitions=False)
    by_load = filled(COUNT, GROUPS, 1, bounded=True, partitions=False)
    divided = filled(COUNT, GROUPS, 1, bounded=True, partitions=True)
    assert by_hash.imbalance() > by_load.imbalance() > 2, "one hot topic is more than a group's share: only partitions help"
    assert divided.imbalance() <= BOUND + SHARE_OF_A_TOPIC


def test_groups_that_come_move_nothing_and_get_what_is_new(cluster: Cluster) -> None:
    before = dict(cluster.place)
    new = {cluster.add_group() for _ in range(2)}
    assert (cluster.place, cluster.moves) == (before, 0)
    for number in range(400):
        cluster.create(Topic(f"new{number}", 0.005))
    got = sum(cluster.place[f"new{number}"] in new for number in range(400))
    assert got > 400 * 2 / 22, "more than their share, as the others are near the bound"
    assert all(cluster.place[name] == group for name, group in before.items())


def test_balancing_moves_few_topics_and_ends(cluster: Cluster) -> None:
    for _ in range(2):
        cluster.add_group()
    before = dict(cluster.place)
    cluster.balance()
    assert cluster.imbalance() <= BALANCED
    moved = sum(before[name] != group for name, group in cluster.place.items())
    assert 0 < moved <= cluster.moves < len(before) / 20
    moves = cluster.moves
    cluster.balance()
    assert cluster.moves == moves, "it is balanced"


def test_a_topic_that_is_too_much_for_any_group_stays() -> None:
    cluster = filled(COUNT, GROUPS, 1, bounded=True, partitions=False)
    cluster.balance()
    assert cluster.imbalance() > BALANCED
    fullest = max(cluster.groups, key=lambda group: cluster.groups[group])
    assert cluster.loads[cluster.members()[fullest][0]] > BALANCED


def test_a_group_that_goes_moves_its_own_topics_alone(cluster: Cluster) -> None:
    before = dict(cluster.place)
    own = {name for name, group in before.items() if group == 3}
    cluster.remove_group(3)
    assert cluster.moves == len(own)
    assert {name for name, group in cluster.place.items() if before[name] != group} == own
    assert cluster.imbalance() <= BOUND + SHARE_OF_A_TOPIC


def test_a_failover_moves_no_topic_and_every_client_comes_back(cluster: Cluster) -> None:
    before = dict(cluster.place)
    found = fail_over(cluster, 1, 2000, 1, seed=1)
    assert cluster.place == before
    assert 0 < found.topics < len(before) / 8
    assert found.clients == pytest.approx(2000 * found.load, rel=0.3), "clients use topics in proportion to their load"
    assert found.peak_per_s >= found.clients, "each tries several times within the first second"
    assert 3.0 <= found.last_s < 3.0 + 5.0 + 1.0, "a TTL, and a back-off"
    of_five = fail_over(cluster, 1, 2000, 5, seed=1)
    assert 2 * found.clients < of_five.clients < 5 * found.clients


def test_the_page_has_the_rows_of_the_program() -> None:
    """The row names are compared here, the figures in the torture part."""
    page = (ROOT / "docs/scale.md").read_text()
    for line in (*list(rows(200, 100, 1))[2:], *list(failovers(200, 100, 100, 1))[2:]):
        assert f"| {line.split('|')[1].strip()} |" in page, line


@pytest.mark.torture
def test_the_page_has_the_figures_of_the_program() -> None:
    page = (ROOT / "docs/scale.md").read_text()
    for line in (*rows(100_000, 100, 1), *failovers(100_000, 100, 1_000_000, 1)):
        assert line in page, line
