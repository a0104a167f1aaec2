"""`toymqctl doctor` names each problem with a remedy, and reports none on a healthy broker."""

from typing import Any

import pytest

from toymq_py.errors import PlacementUnknown
from toymqctl.absences import examine_groups
from toymqctl.doctor import examine, examine_without_figures
from toymqctl.findings import Finding

GIB = 1 << 30


def consumer(**changes: Any) -> dict[str, Any]:
    return {
        "consumer": "c", "backlog": 0, "ready": 0, "inflight": 0, "sessions": 0, "oldest_unacked_age_s": 0.0, "attempts_max": 1,
        "mode": "shared", **changes,
    }  # fmt: skip


BEHIND = consumer(backlog=5, ready=5, oldest_unacked_age_s=61.0)
STUCK = consumer(
    mode="keyed", backlog=90, ready=80, inflight=0, sessions=4, retrying=1, attempts_max=4, attempts_max_id=7,
    oldest_unacked_age_s=61.0,
)  # fmt: skip
ENDLESS = consumer(backlog=1, sessions=1, attempts_max=101, attempts_max_id=7)


def topic(**changes: Any) -> dict[str, Any]:
    return {"topic": "t", "state": "ok", "lost": 0, "settings": {}, "consumers": [consumer()], **changes}


def stats(**changes: Any) -> dict[str, Any]:
    limits = {"max_connections": 100, "max_topics": 10, "max_consumers": 10, "min_free_bytes": GIB, "max_attempts": 20}
    return {
        "fsync": "always", "fsync_total": 7, "fsync_p99_s": 0.001, "disk_free_bytes": 50 * GIB, "disk_low": False,
        "connections": 1, "limits": limits, "topics": [topic()], **changes,
    }  # fmt: skip


OF_THREE = {"replicas": 3, "min_in_sync": 2, "damaged_segments": 0}
WAITING = topic(evicted={"segments": 1, "bytes": 9, "problem": "no route"})
UNRESERVED = stats()["limits"] | {"min_free_bytes": 0}
"""As with ``--min-free-bytes 0``: a full disk was ok."""


def found(
    told: dict[str, Any], *, server: str = "toymq/1.0", round_trip_s: float = 0.001, skew_s: float = 0.0
) -> list[Finding]:
    return list(examine(told, server, "1.0", 2 << 20, round_trip_s, skew_s))


def test_a_bucket_that_takes_segments_is_said() -> None:
    told = stats(tier="s3://b", tier_problem=None, topics=[topic(evicted={"segments": 1, "bytes": 9, "problem": None})])
    (finding,) = (one for one in found(told) if one.check == "tier")
    assert (finding.state, finding.found) == ("ok", "s3://b gets what is sealed")


def test_a_consumer_at_its_limit_of_unacked_messages_is_told_what_it_waits_for() -> None:
    full = topic(consumers=[consumer(backlog=60, ready=10, inflight=50, sessions=1)])
    limits = stats()["limits"]
    (finding,) = (one for one in found(stats(limits={**limits, "max_unacked": 50}, topics=[full])) if one.state == "warn")
    assert finding.check == "consumer c of t"
    assert "50 messages are inflight, the limit (--max-unacked)" in finding.found
    assert {one.state for one in found(stats(limits={**limits, "max_unacked": 51}, topics=[full]))} == {"ok"}
    assert {one.state for one in found(stats(topics=[full]))} == {"ok"}, "an older broker says no limit"


def test_copies_that_are_in_sync_are_fine() -> None:
    (finding,) = (one for one in found(stats(cluster={"in_sync": 2, "damaged_segments": 0})) if one.check == "copies")
    assert (finding.state, finding.found) == ("ok", "2 copies in sync")


def test_etcd_that_answers_is_fine_and_an_older_leader_does_not_say() -> None:
    """Found: everything was ok while etcd hung."""
    for silent_s, said in ((0.0, ["answers the leader"]), (0.2, ["answers the leader"]), (None, [])):
        told = OF_THREE | {"in_sync": 3} | ({} if silent_s is None else {"etcd_silent_s": silent_s})
        assert [one.found for one in found(stats(cluster=told)) if one.check == "etcd"] == said
    told = stats(cluster=OF_THREE | {"in_sync": 3, "etcd_silent_s": 9.0})
    (of_groups,) = (one for one in examine(told, "toymq/1.0", "1.0", 2 << 20, 0.001, 0.0, GROUPS) if one.check == "etcd")
    assert of_groups.found.endswith("from a leader that dies, and no new topic is placed")


LED = {"leader": "a1:1", "nodes": ["a1:1"], "placed": True, "messages_s": 0, "in_sync": 2, "replicas": 2, "min_in_sync": 1}
GROUPS = {"group": "a", "groups": {"a": LED, "b": LED | {"leader": "b2:1", "in_sync": 1}}}
"""Group a answers and is whole; group b is on its last copy."""
AWAY = {"group": "a", "groups": {"a": LED, "b": LED | {"leader": None, "nodes": ["b1:1", "b2:1"]}}}


def test_the_copies_of_every_group_are_looked_at() -> None:
    """Found: only the copies of the group that answered were checked, and the last copy of another group was ok."""
    told = stats(cluster={"in_sync": 2, "damaged_segments": 0})
    findings = {one.check: one for one in examine(told, "toymq/1.0", "1.0", 2 << 20, 0.001, 0.0, GROUPS)}
    assert (findings["copies of group a"].state, findings["copies of group a"].found) == ("ok", "2 copies in sync")
    last = findings["copies of group b"]
    assert (last.state, last.found) == ("warn", "one copy is in sync: what gets OK is on its leader's disk alone")
    assert "`toymqctl cluster --group b` shows them" in last.advice
    assert "copies" not in findings
    old = {"group": "a", "groups": {name: {"leader": "x:1", "placed": True, "nodes": []} for name in ("a", "b")}}
    (only,) = (one for one in examine(told, "toymq/1.0", "1.0", 2 << 20, 0.001, 0.0, old) if "copies" in one.check)
    assert only.check == "copies of group a", "an older leader does not know those of others: whose they are is said"
    hurt = stats(cluster={"in_sync": 2, "damaged_segments": 1})
    states = [(one.check, one.state) for one in examine(hurt, "toymq/1.0", "1.0", 2 << 20, 0.001, 0.0, GROUPS)]
    assert [one for one in states if "copies" in one[0]] == [("copies of group a", "FAIL"), ("copies of group b", "warn")]


def test_a_group_that_is_away_is_named_and_the_rest_is_checked() -> None:
    """Found: the only line was that the broker, which had answered, was not reachable."""
    assert [(one.check, one.state) for one in examine_groups(AWAY)] == [("group a", "ok"), ("group b", "FAIL")]
    *_, away = examine_groups(AWAY)
    assert away.found == "no leader: its topics are away. Its nodes are, or were, b1:1, b2:1"
    (new,) = examine_groups({"groups": {"c": {"leader": None, "placed": False, "nodes": []}}})
    assert new.state == "warn"
    (left,) = examine_groups({"groups": {"g0": LED | {"placed": False}}})
    assert (left.state, left.advice) == ("warn", "restart its nodes with --group g0, followers first")
    assert left.found.startswith("a1:1 leads without --group: no new topic is placed"), "it was ok, and no list had its topics"
    error = PlacementUnknown("group b does not answer")
    findings = list(examine_without_figures([topic(consumers=[BEHIND])], "toymq/1.0", "1.0", 0.001, AWAY, error))
    assert [(one.check, one.state) for one in findings] == [
        ("round trip", "ok"), ("version", "ok"), ("copies of group a", "ok"), ("figures", "FAIL"), ("topics", "ok"),
        ("lag", "warn"), ("retries", "ok"), ("dead letters", "ok"),
    ]  # fmt: skip


def test_workers_are_counted_and_the_one_that_is_asked_is_named() -> None:
    """Found: no line mentioned the broker's workers."""
    cluster = {"worker": 2, "workers": [["h:1"], ["h:2"], ["h:3"]]}
    (finding,) = (one for one in examine(stats(), "toymq/1.0", "1.0", 2 << 20, 0.001, 0.0, cluster) if one.check == "workers")
    said = "3, all of them answer; worker 2 answers this command, with the figures of all"
    assert (finding.state, finding.found) == ("ok", said)
    error = PlacementUnknown("worker 1 does not answer")
    findings = list(examine_without_figures(None, "toymq/1.0", "1.0", 0.001, cluster, error))
    (figures,) = (one for one in findings if one.check == "figures")
    assert findings[-1] is figures, "no topic was looked at: `ok topics: 0, none degraded` was said of what is not known"
    assert "a worker that ended is started again" in figures.advice


def test_what_a_token_may_not_see_is_not_said_to_be_fine() -> None:
    """Found: `ok dead letters: none` included topics that the token may not list."""
    seen = " (of the topics that this token may see)"
    whole = {one.check for one in examine(stats(), "toymq/1.0", "1.0", 2 << 20, 0.001, 0.0, seen=seen) if seen not in one.found}
    assert whole == {"round trip", "version", "durability", "disk", "fsync", "clock"}
    error = PlacementUnknown("group b does not answer")
    findings = examine_without_figures([topic()], "toymq/1.0", "1.0", 0.001, AWAY, error, seen)
    assert [one.check for one in findings if seen in one.found] == ["topics", "lag", "retries", "dead letters"]


def test_topics_are_counted_as_the_limit_counts_them() -> None:
    """Found: the output had `43 of 10000 topics` above `topics: 47`."""
    letters = topic(topic="t.dlq", messages=0)
    said = {one.check: one.found for one in found(stats(topics=[topic(), letters]))}
    assert said["limits"].startswith("1 of 100 connections, 1 of 10 topics,")
    assert said["topics"] == "1 and 1 of dead letters, none degraded"


def test_a_token_that_expires_later_is_fine() -> None:
    findings = found(stats(time_ms=0, tokens=[{"name": "a", "expires_ms": 10**10}]))
    (finding,) = (one for one in findings if one.check == "token a")
    assert (finding.state, finding.advice) == ("ok", "")


def test_a_sound_broker_has_no_trouble() -> None:
    findings = found(stats())
    assert {finding.state for finding in findings} == {"ok"}
    assert [finding.check for finding in findings] == [
        "round trip", "version", "durability", "disk", "fsync", "limits", "clock", "topics", "lag", "retries", "dead letters",
    ]  # fmt: skip
    assert not any(finding.advice for finding in findings), "there is nothing to do"


@pytest.mark.parametrize(
    ("changes", "check", "state", "text", "advice"),
    [
        ({"fsync": "never"}, "durability", "warn", "--fsync never: OK does not mean", "--fsync always"),
        ({"disk_low": True}, "disk", "FAIL", "publishing is refused", "make room"),
        ({"disk_free_bytes": GIB - 1}, "disk", "FAIL", "1024.0MiB free, publishing stops below 1.0GiB", "make room"),
        ({"disk_free_bytes": 4 * GIB - 1}, "disk", "warn", "4.0GiB free", "make room"),
        ({"disk_free_bytes": 0, "limits": UNRESERVED}, "disk", "FAIL", "0B free: the disk is full, and", "room"),
        (
            {"disk_free_bytes": 200 << 20, "limits": UNRESERVED}, "disk", "warn",
            "200.0MiB free, publishing goes on until the disk is full (--min-free-bytes 0)", "make room",
        ),
        ({"fsync_p99_s": 0.0501}, "fsync", "warn", "p99 50.10 ms of 7", "a disk of its own"),
        ({"connections": 90}, "limits", "warn", "90 of 100 connections", "a larger --max-connections"),
        ({"topics": [topic(topic=f"t{n}") for n in range(9)]}, "limits", "warn", "9 of 10 topics", "a larger --max-topics"),
        ({"topics": [topic(consumers=[consumer()] * 9)]}, "limits", "warn", "9 of 10 consumers", "a larger --max-consumers"),
        ({"topics": [topic(state="degraded", lost=3)]}, "topic t", "FAIL", "3 messages are lost", "repair DATA_DIR` accepts"),
        ({"tier": "s3://b", "tier_problem": "away"}, "tier", "FAIL", "s3://b does not get all segments, they stay", "mount"),
        ({"tier": "s3://b", "tier_problem": None, "topics": [WAITING]}, "tier", "FAIL", "readers of t wait: no", "network"),
        ({"topics": [WAITING]}, "tier", "FAIL", "readers of t wait: no route", "start the broker with the --tier"),
        ({"cluster": {"in_sync": 1, "damaged_segments": 0}}, "copies", "warn", "one copy is in sync", "`toymqctl cluster`"),
        ({"cluster": OF_THREE | {"in_sync": 2}}, "copies", "warn", "2 of 3 copies are in sync", "`toymqctl cluster`"),
        ({"cluster": OF_THREE | {"in_sync": 1}}, "copies", "FAIL", "below 2 publishes are refused", "`toymqctl cluster`"),
        ({"cluster": {"in_sync": 2, "damaged_segments": 1}}, "copies", "FAIL", "damage in 1 segment that no", "toymq verify"),
        (
            {"cluster": OF_THREE | {"in_sync": 3, "etcd_silent_s": 42.5}}, "etcd", "FAIL",
            "has not answered the leader for 42.5s: what is there goes on; no copy takes over from a leader that dies",
            "etcdctl endpoint health",
        ),
        ({"topics": [topic(state="failed")]}, "topic t", "FAIL", "publishing is refused", "restart the broker"),
        ({"topics": [topic(state="failed", problem="x is a dir")]}, "topic t", "FAIL", "not served: x is a", "toymq verify"),
        ({"time_ms": 10, "tokens": [{"name": "a", "expires_ms": 9}]}, "token a", "FAIL", "it is refused", "token create"),
        ({"time_ms": 0, "tokens": [{"name": "a", "expires_ms": 86_400_000}]}, "token a", "warn", "expires in 1.0d", "SIGHUP"),
        (
            {"topics": [topic(settings={"max_attempts": 0}, consumers=[ENDLESS])]}, "consumer c of t", "warn",
            "message 7 has had 101 attempts and max_attempts is 0", "toymqctl config t max_attempts=20",
        ),
        ({"topics": [topic(topic="t.dlq", consumers=[ENDLESS])]}, "consumer c of t.dlq", "warn", "101 attempts", "ack t.dlq"),
        (
            {"topics": [topic(consumers=[consumer(backlog=5, oldest_unacked_age_s=86_401.0)])]},
            "consumer c of t", "warn", "5 unacked, the oldest for 1.0d", "toymqctl forget t c",
        ),
        (
            {"topics": [topic(consumers=[BEHIND | {"sessions": 1}])]}, "lag", "warn",
            "c of t has 5 unacked, the oldest for 1.0m", "start its workers, or more",
        ),
        ({"topics": [topic(consumers=[BEHIND])]}, "lag", "warn", "1.0m, and nothing is attached", "start its workers"),
        (
            {"topics": [topic(consumers=[STUCK])]}, "consumer c of t", "warn",
            "80 messages wait behind 1 of the same keys that is retried (most often: id 7, 4 attempts)",
            "more workers do not help. `toymqctl inspect t 7` shows its last error; "
            "mend its handler, or give it up: `toymqctl nack t c 7 --dead`",
        ),
        (
            {"topics": [topic(consumers=[STUCK | {"ready": 20_000}])]}, "consumer c of t", "warn",
            "4 attempts); messages of other keys behind 20000 of them may wait, too", "more workers do not help",
        ),
        ({"topics": [topic(consumers=[STUCK | {"inflight": 2}])]}, "lag", "warn", "90 unacked", "or more of them"),
        ({"topics": [topic(consumers=[STUCK | {"mode": "shared"}])]}, "lag", "warn", "90 unacked", "or more of them"),
        (
            {"topics": [topic(consumers=[consumer(sessions=1, retrying=94, attempts_max=7, attempts_max_id=12)])]},
            "retries", "warn", "c of t retries 94 messages after failed attempts, one of them has had 7 (id 12)",
            "see why its handler fails",
        ),
        (
            {"topics": [topic(topic=f"t{n}.dlq", messages=9, letters=n) for n in range(6)]}, "dead letters", "warn",
            "5 of t5; 4 of t4; 3 of t3; and 2 more", "`toymqctl dlq list t5 --group` says why",
        ),
    ],
)  # fmt: skip
def test_each_trouble_is_named(changes: dict[str, Any], check: str, state: str, text: str, advice: str) -> None:
    (trouble,) = (finding for finding in found(stats(**changes)) if finding.state != "ok")
    assert (trouble.check, trouble.state) == (check, state)
    assert text in trouble.found
    assert advice in trouble.advice


@pytest.mark.parametrize(
    ("measured", "check", "text"),
    [
        ({"server": "toymq/2.0"}, "version", "broker 2.0, toymqctl 1.0"),
        ({"round_trip_s": 0.3}, "round trip", "answers in 300.00 ms"),
        ({"skew_s": 90.0}, "clock", "1.5m ahead of ours"),
        ({"skew_s": -1.5}, "clock", "1.5s behind ours"),
    ],
)
def test_what_we_measure_ourselves(measured: dict[str, Any], check: str, text: str) -> None:
    (trouble,) = (finding for finding in found(stats(), **measured) if finding.state != "ok")
    assert (trouble.check, trouble.state, trouble.found) == (check, "warn", text)
    assert trouble.advice


@pytest.mark.parametrize(
    "quiet",
    [consumer(backlog=5, inflight=5, oldest_unacked_age_s=9e5, sessions=1), BEHIND | {"oldest_unacked_age_s": 60.0},
     consumer(retrying=3, attempts_max=4)],
)
def test_a_consumer_that_works_is_no_trouble(quiet: dict[str, Any]) -> None:
    assert {finding.state for finding in found(stats(topics=[topic(consumers=[quiet])]))} == {"ok"}


def test_many_attempts_that_end_are_no_trouble() -> None:
    """With a limit of attempts, the topic's or the broker's, the message will be a dead letter. The broker's 0 means no
    limit."""
    told = stats(topics=[topic(consumers=[ENDLESS]), topic(settings={"max_attempts": 1000}, consumers=[ENDLESS])])
    assert {finding.state for finding in found(told)} == {"ok"}
    told["limits"]["max_attempts"] = 0
    assert [finding.check for finding in found(told) if finding.state != "ok"] == ["consumer c of t"]
