"""The JSON values of etcd's keys: how they are written, and which are refused when read."""

import json
from dataclasses import replace
from typing import Any

import pytest

from toymq_py.errors import ConfigError, EtcdError
from toymq_py.replication import group_keys
from toymq_py.replication.agreement import (
    Answer,
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
from toymq_py.replication.group_keys import TEXT_CHARS_MAX, GroupKeys
from toymq_py.replication.key_values import Found, KeyValue

KEYS = GroupKeys("prod", "g0")
N1 = Member("1" * 32, "n1", "a:6789", "a:6791")
MEMBER = {"replica": "1" * 32, "name": "n1", "url": "a:6789", "repl": "a:6791"}
SEAT = {**MEMBER, "version": "5.0", "state": "LEADING", "lag_bytes": None, "seen_ns": 7}


def kept(key: str, value: object) -> KeyValue:
    encoded = value if isinstance(value, bytes) else json.dumps(value).encode()
    return KeyValue(key, encoded, created=3, changed=4, lease=9)


def found(**values: object) -> Found:
    return Found(tuple(kept(f"/toymq/prod/groups/g0/{name}", value) for name, value in values.items()), 8)


def test_what_is_written() -> None:
    written = {
        "settings": group_keys.encode_settings(ClusterSettings("u", 2, 1, 3.0)),
        "member": group_keys.encode_member(N1),
        "in sync": group_keys.encode_in_sync(["1" * 32], 3),
        "hand-over": group_keys.encode_hand_over(HandOver("2" * 32, 3)),
        "request": group_keys.encode_request(Request(RequestKind.HAND_OVER, None, 4)),
        "answer": group_keys.encode_answer(Answer(4, accepted=True, text="t" * 2000)),
        "seat": group_keys.encode_seat(Seat(N1, "5.0", "LEADING", None, 7)),
    }
    assert {name: json.loads(value) for name, value in written.items()} == {
        "settings": {"version": 1, "cluster": "u", "replicas": 2, "min_in_sync": 1, "ttl_s": 3.0},
        "member": MEMBER,
        "in sync": {"members": ["1" * 32], "epoch": 3},
        "hand-over": {"to": "2" * 32, "from": 3},
        "request": {"kind": "hand-over", "replica": None, "in_sync_revision": 4},
        "answer": {"request": 4, "accepted": True, "text": "t" * TEXT_CHARS_MAX},
        "seat": SEAT,
    }


def test_what_rules_read() -> None:
    state = KEYS.decode_state(
        found(
            answer={"request": 3, "accepted": False, "text": "no"},
            handover={"to": "2" * 32, "from": 2},
            isr={"members": ["1" * 32, "2" * 32], "epoch": 2},
            leader=MEMBER,
            request={"kind": "force", "replica": "1" * 32, "in_sync_revision": 3},
        )
    )
    assert state == GroupState(
        LeaderKey(N1, epoch=3, lease=9),
        InSync(("1" * 32, "2" * 32), epoch=2, revision=4),
        HandOver("2" * 32, 2),
        Request(RequestKind.FORCE, "1" * 32, 3, revision=4),
        Answer(3, accepted=False, text="no"),
        revision=8,
    )
    assert KEYS.decode_state(Found((), 8)) == GroupState(None, None, None, None, None, 8)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("leader", b""),
        ("leader", b"[" * 100_000),
        ("leader", []),
        ("leader", {**MEMBER, "replica": "1" * 31}),
        ("leader", {**MEMBER, "replica": "1" * 31 + "G"}),
        ("leader", {**MEMBER, "url": None}),
        ("isr", {"members": None, "epoch": 2}),
        ("isr", {"members": ["n1"], "epoch": 2}),
        ("isr", {"members": [], "epoch": True}),
        ("isr", {"members": [], "epoch": "2"}),
        ("handover", {"to": None, "from": 2}),
    ],
)
def test_a_value_that_rules_need_is_what_toymq_writes(name: str, value: object) -> None:
    with pytest.raises(EtcdError, match=f"/toymq/prod/groups/g0/{name} in etcd"):
        KEYS.decode_state(found(**{name: value}))


def test_a_request_of_a_later_toymqctl_stops_no_group() -> None:
    state = KEYS.decode_state(found(answer={}, leader=MEMBER, request={"kind": "explode", "in_sync_revision": 3}))
    assert (state.request, state.answer) == (None, None)
    assert state.leader is not None


def settings(**changed: object) -> dict[str, object]:
    return {"version": 1, "cluster": "u", "replicas": 3, "min_in_sync": 2, "ttl_s": 2, **changed}


@pytest.mark.parametrize(
    "changed",
    [
        {"version": 2}, {"version": None}, {"cluster": 7}, {"replicas": "3"}, {"min_in_sync": 4}, {"min_in_sync": 0},
        {"ttl_s": 1.9}, {"ttl_s": True}, {"ttl_s": 1e9}, {"ttl_s": "3"},
    ],
)  # fmt: skip
def test_settings_that_are_refused(changed: dict[str, Any]) -> None:
    assert KEYS.decode_settings(Found((kept(KEYS.config, settings()),), 4)) == ClusterSettings("u", 3, 2, 2.0)
    with pytest.raises(EtcdError, match="/toymq/prod/config in etcd"):
        KEYS.decode_settings(Found((kept(KEYS.config, settings(**changed)),), 4))


def test_seats_and_last_words() -> None:
    n2 = {**SEAT, "replica": "2" * 32, "name": "n2", "state": "FOLLOWING", "lag_bytes": 5}
    keys = {
        f"seats/{'1' * 32}": SEAT,
        f"seen/{'1' * 32}": {**SEAT, "state": "OPENING"},
        f"seen/{'2' * 32}": n2,
        f"seats/{'3' * 32}": {"name": "n3"},
    }
    leads, gone = KEYS.decode_seats(found(**keys))
    assert leads == Seat(N1, "5.0", "LEADING", None, 7, present=True)
    assert gone == Seat(Member("2" * 32, "n2", "a:6789", "a:6791"), "5.0", "FOLLOWING", 5, 7, present=False)


@pytest.mark.parametrize("name", ["", "a/b", "-a", "a" * 64, "ä", "a\n", "a.b"])
def test_a_name_is_one_part_of_a_key(name: str) -> None:
    for names in ((name, "g0"), ("prod", name)):
        with pytest.raises(ConfigError, match="invalid name"):
            GroupKeys(*names)


def test_a_member_says_where_its_gateway_is_and_an_older_one_does_not() -> None:
    new = replace(N1, http="10.0.0.1:8080", https="", tls="10.0.0.1:6790")
    for member in (N1, new):
        written = json.loads(group_keys.encode_member(member))
        state = KEYS.decode_state(found(leader=written))
        assert state.leader is not None
        assert state.leader.member == member
    assert MEMBER.keys() == json.loads(group_keys.encode_member(N1)).keys(), "an older node reads it"


def test_a_seat_has_damage_lags_and_what_it_waits_for_where_there_are_some() -> None:
    seat = Seat(N1, "5.0", "LEADING", None, 7, damaged=2, lags=(("2" * 32, 4096),))
    key = f"{KEYS.group}seats/{N1.replica}"
    assert KEYS.decode_seats(Found((kept(key, json.loads(group_keys.encode_seat(seat))),), 8)) == [seat]
    waits = Seat(N1, "5.0", "LOOKING", None, 7, waits_for="w" * 2000)
    (read,) = KEYS.decode_seats(Found((kept(key, json.loads(group_keys.encode_seat(waits))),), 8))
    assert read.waits_for == "w" * 1000
    for lags in ({"x": 1}, {"2" * 32: "1"}, [1]):
        assert KEYS.decode_seats(Found((kept(key, SEAT | {"lags": lags}),), 8)) == [], "unreadable: people need the others"


def test_settings_of_a_cluster_that_was_adopted() -> None:
    adopted = ClusterSettings("u", 2, 1, 3.0, was="t", adopted="1" * 32)
    written = json.loads(group_keys.encode_settings(adopted))
    assert KEYS.decode_settings(Found((kept(KEYS.config, written),), 4)) == adopted
    with pytest.raises(EtcdError, match="32 hexadecimal digits"):
        KEYS.decode_settings(Found((kept(KEYS.config, written | {"adopted": "n1"}),), 4))
