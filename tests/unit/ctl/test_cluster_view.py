"""The state of a cluster in words: each line says what a node waits for and what helps."""

from dataclasses import replace

import pytest

from toymq_py.partitions import Partitioned
from toymq_py.replication.agreement import (
    ClusterSettings,
    GroupState,
    HandOver,
    InSync,
    LeaderKey,
    Member,
    Request,
    RequestKind,
    Seat,
)
from toymq_py.replication.kept_places import Picture, Record
from toymq_py.storage.partitions_file import StoredPartitions
from toymqctl.cluster_requests import Cluster
from toymqctl.cluster_view import as_json, placed, shown, troubles

NOW_S = 1_700_000_000.0
N1 = Member("1" * 32, "n1", "10.0.0.1:6789", "10.0.0.1:6791")
N2 = Member("2" * 32, "n2", "10.0.0.2:6789", "10.0.0.2:6791")
N3 = Member("3" * 32, "n3", "10.0.0.3:6789", "10.0.0.3:6791")


def seat(member: Member, state: str = "FOLLOWING", *, gone_s: float | None = None, lag_bytes: int | None = 0) -> Seat:
    seen_ns = int((NOW_S - (gone_s or 0)) * 1e9)
    return Seat(member, "5.0", state, lag_bytes, seen_ns, present=gone_s is None)


def cluster(
    leader: Member | None, in_sync: tuple[Member, ...] | None, *seats: Seat, replicas: int = 2, min_in_sync: int = 1
) -> Cluster:
    state = GroupState(
        None if leader is None else LeaderKey(leader, 4711, 7),
        None if in_sync is None else InSync(tuple(each.replica for each in in_sync), 4711, 4712),
        None, None, None, 4800,
    )  # fmt: skip
    return Cluster(ClusterSettings("u", replicas, min_in_sync), state, list(seats))


LEADS = seat(N2, "LEADING", lag_bytes=None)


def test_a_whole_cluster_is_a_line_and_a_table() -> None:
    found = cluster(N2, (N1, N2), seat(N1), LEADS)
    assert shown("orders", found, NOW_S).splitlines() == [
        "cluster orders   epoch 4711   in sync 2 of 2   min in sync 1   ttl 3s",
        "node  state      in sync  address        lag  version  last report",
        "n1    FOLLOWING  yes      10.0.0.1:6789   0B  5.0      -",
        "n2    LEADING    yes      10.0.0.2:6789    -  5.0      -",
    ]
    assert troubles(found, NOW_S) == []


def test_a_leader_that_was_just_killed_is_not_shown_as_if_all_were_well() -> None:
    """In etcd a killed node is still the leader until its lease ends."""
    found = replace(cluster(N2, (N1, N2), seat(N1), LEADS), silent={N2.replica: "Connection refused"})
    assert shown("orders", found, NOW_S).splitlines()[2:] == [
        "n1    FOLLOWING           yes      10.0.0.1:6789   0B  5.0      -",
        "n2    LEADING, no answer  yes      10.0.0.2:6789    -  5.0      -",
        "n2 does not answer at 10.0.0.2:6789 (Connection refused): if it is gone, its lease ends within 3 s, and another"
        " copy leads",
    ]
    assert [node["answers"] for node in as_json("orders", found, NOW_S)["nodes"]] == [True, False]
    found = replace(found, silent={N1.replica: "no answer within 1 s"})
    assert troubles(found, NOW_S) == [
        "n1 does not answer at 10.0.0.1:6789 (no answer within 1 s): if it is gone, its lease ends within 3 s"
    ]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (cluster(None, None), ["no copy yet: the first node that starts begins the group"]),
        (cluster(N2, (N2,), LEADS), ["1 copy of 2 in sync; start another node"]),
        (
            cluster(N2, (N2,), seat(N1, "JOINING", lag_bytes=1 << 30), LEADS),
            ["1 copy of 2 in sync; not in sync: n1 is JOINING"],
        ),
        (
            cluster(N2, (N2,), seat(N1, gone_s=7200), LEADS),
            ["1 copy of 2 in sync; not in sync: n1 (last report 2.0h ago)"],
        ),
        (
            cluster(N2, (N2,), seat(N1, gone_s=60), LEADS, seat(N3, "LOOKING"), replicas=3, min_in_sync=2),
            [
                "publishes are refused (NOT_ENOUGH_REPLICAS): 1 in sync, and 2 are needed",
                "1 copy of 3 in sync; not in sync: n1 (last report 1.0m ago) and n3 is LOOKING",
            ],
        ),
        (
            cluster(None, (N1,), seat(N1, gone_s=240), seat(N2, "LOOKING", lag_bytes=1200 << 20)),
            [
                "no leader: n1 (last report 4.0m ago) is the only copy in sync, with everything that was acknowledged."
                " Start n1; or `toymqctl cluster force n2 --i-accept-loss`, which loses what was acknowledged since it was in"
                " sync"
            ],
        ),
        (
            cluster(None, (N1, N3), seat(N1, gone_s=240)),
            [
                "no leader: n1 (last report 4.0m ago) and 33333333 (never seen) are the copies in sync, with everything that"
                " was acknowledged. Start n1 or 33333333"
            ],
        ),
        (cluster(None, (N1, N2), seat(N1), LEADS), ["no leader: n1 and n2 stand for election"]),
        (cluster(None, (N1,), seat(N1, "OPENING")), ["no leader: n1 stands for election"]),
        (
            cluster(None, (N1, N2), replace(seat(N1), waits_for="etcd went back"), seat(N2)),
            ["no leader: n1 waits (etcd went back)"],
        ),
        (
            cluster(N2, (N2,), replace(seat(N1, "LOOKING"), waits_for="its disk\x1b[2J fails"), LEADS),
            ["1 copy of 2 in sync; not in sync: n1 waits (its disk·[2J fails)"],
        ),
        (
            cluster(N2, (N1, N2), seat(N1), LEADS, replace(seat(N1), member=replace(N3, name="n1"))),
            ["several nodes that run are named n1: start each with a --name of its own"],
        ),
    ],
)  # fmt: skip
def test_what_is_waited_for(found: Cluster, said: list[str]) -> None:
    assert troubles(found, NOW_S) == said
    assert shown("orders", found, NOW_S).endswith("\n".join(said))


def test_of_several_copies_that_lag_the_nearest_is_named() -> None:
    near, far = seat(N3, "LOOKING", lag_bytes=5), seat(N2, "LOOKING", lag_bytes=None)
    (said,) = troubles(cluster(None, (N1,), far, near), NOW_S)
    assert "force n3" in said


def test_a_hand_over_and_a_request_are_said() -> None:
    found = cluster(None, (N1, N2), seat(N1), seat(N2))
    state = replace(found.state, hand_over=HandOver(N2.replica, 4711), request=Request(RequestKind.FORCE, N1.replica, 1, 9))
    assert troubles(replace(found, state=state), NOW_S) == [
        "no leader: n2 takes over",
        "a request waits for its node: force",
    ]


def test_what_a_node_says_moves_no_cursor() -> None:
    found = cluster(N2, (N2,), seat(N1, "\x1b[2J"), LEADS)
    assert "\x1b" not in shown("orders", found, NOW_S)


def test_a_clock_that_is_ahead() -> None:
    assert "n1 (last report 0.0s ago)" in troubles(cluster(N2, (N2,), seat(N1, gone_s=-60), LEADS), NOW_S)[0]


def test_a_node_that_was_killed_is_not_taken_for_the_copy_in_sync_nor_its_last_word_for_the_kill() -> None:
    found = cluster(N2, (N2,), seat(N1, gone_s=43), LEADS)
    *_, row, _, note, trouble = shown("orders", found, NOW_S).splitlines()
    assert row == "n1    -        no       10.0.0.1:6789    -  5.0      43.0s ago"
    assert note == (
        "last report: a node reports once a minute, so it may have run up to a minute longer; `in sync` says which have all"
    )
    assert trouble == "1 copy of 2 in sync; not in sync: n1 (last report 43.0s ago)"


def test_each_partition_is_a_topic_of_its_group_and_the_whole_is_none() -> None:
    """The count is the same as that of the limit and of the metric."""
    picture = Picture("/")
    picture.records = {name: Record("a", 1) for name in ("t", "p#0", "p#2")} | {"p#1": Record("b", 1)}
    picture.records["p"] = Record("a", 1, StoredPartitions(Partitioned("p", 3)))
    assert placed(picture, "b") == {"group": "b", "topics": 1, "partitions": 1, "messages_s": 0}
    found = placed(picture, "a")
    assert found == {"group": "a", "topics": 3, "partitions": 2, "messages_s": 0}
    line = shown("orders", cluster(N2, (N1, N2), seat(N1), LEADS), NOW_S, found).splitlines()[0]
    assert line.endswith("   topics 3 (2 of them partitions)   messages 0/s")


def test_what_is_left_to_do_before_a_cluster_of_one_group_has_two() -> None:
    """Found: the output was "topics 0" for the group that has all of them, without the next step."""
    picture = Picture("/")
    for name, is_placed in (("g0", False), ("b", True)):
        group = picture._group(name)
        group.made, group.begun, group.placed = True, True, is_placed
    found = placed(picture, "g0")
    assert (found["topics"], len(found["left_to_do"])) == (None, 1)
    lines = shown("orders", cluster(N2, (N1, N2), seat(N1), LEADS), NOW_S, found).splitlines()
    assert lines[0].endswith("   topics not known   messages 0/s")
    assert lines[-1] == (
        "group g0 has not been served with --group yet: restart its nodes with --group g0, followers first; its topics go on"
        " meanwhile. Until then no new topic is placed in any group, and lists of other groups lack its topics"
    )
    assert "left_to_do" not in placed(picture, "b")


def test_for_programs() -> None:
    found = cluster(N2, (N2,), seat(N1, gone_s=240), LEADS)
    value = as_json("orders", found, NOW_S)
    assert value["nodes"][0] == {
        "name": "n1", "replica": N1.replica, "url": "10.0.0.1:6789", "repl": "10.0.0.1:6791", "running": False,
        "answers": False,
        "state": "FOLLOWING", "waits_for": "", "in_sync": False, "lag_bytes": 0, "damaged": 0, "version": "5.0",
        "seen_s": 240.0,
    }  # fmt: skip
    assert len(value["nodes"]) == 2
    del value["nodes"]
    assert value == {
        "cluster": "orders", "uuid": "u", "replicas": 2, "min_in_sync": 1, "ttl_s": 3.0, "epoch": 4711, "leader": "n2",
        "in_sync": [N2.replica], "troubles": ["1 copy of 2 in sync; not in sync: n1 (last report 4.0m ago)"],
    }  # fmt: skip
    assert as_json("orders", cluster(None, None), NOW_S)["leader"] is None


def test_a_followers_lag_is_what_its_leader_says_and_damage_is_named() -> None:
    leads = replace(LEADS, lags=((N1.replica, 3 << 20),))
    found = cluster(N2, (N1, N2), replace(seat(N1, lag_bytes=None), damaged=1), leads)
    assert shown("orders", found, NOW_S).splitlines()[2:] == [
        "n1    FOLLOWING  yes      10.0.0.1:6789  3.0MiB  5.0      -",
        "n2    LEADING    yes      10.0.0.2:6789       -  5.0      -",
        "n1 has 1 damaged segment: its log names them",
    ]
    nodes = {node["name"]: (node["lag_bytes"], node["damaged"]) for node in as_json("orders", found, NOW_S)["nodes"]}
    assert nodes == {"n1": (3 << 20, 1), "n2": (None, 0)}


def test_a_leader_says_which_group_refuses_it() -> None:
    leads = replace(LEADS, waits_for="group b refuses this node: AUTH_FAILED")
    assert troubles(cluster(N2, (N1, N2), seat(N1), leads), NOW_S) == ["n2 says: group b refuses this node: AUTH_FAILED"]


def test_a_group_shows_its_part_of_the_topics() -> None:
    picture = Picture("/")
    picture.records = {"t": Record("a", 1), "u": Record("a", 2), "v": Record("b", 3)}
    picture._group("a").load = 12.4
    found = placed(picture, "a")
    assert found == {"group": "a", "topics": 2, "partitions": 0, "messages_s": 12}
    assert placed(picture, "c") == {"group": "c", "topics": 0, "partitions": 0, "messages_s": 0}
    assert placed(picture, None) == {}
    line = shown("orders", cluster(N2, (N1, N2), seat(N1), LEADS), NOW_S, found).splitlines()[0]
    assert line == (
        "cluster orders   group a   epoch 4711   in sync 2 of 2   min in sync 1   ttl 3s   topics 2   messages 12/s"
    )
