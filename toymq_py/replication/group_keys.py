"""The keys of a cluster in etcd, and their JSON. Contract: replication.md, section 3; ADR 0105.

    /toymq/<cluster>/config                       the settings of the group g0
                    /groups/<group>/config        those of another group
                                   /leader        the leader, with its lease
                                   /isr           the in-sync set
                                   /handover      the chosen successor, for HAND_OVER_TTL_S
                                   /request       an operator's request, for REQUEST_TTL_S
                                   /answer        the answer to the last request
                                   /placed        the topics of the group have records (ADR 0188)
                                   /seats/<id>    the status of a node, with the node's lease
                                   /seen/<id>     the same, kept when the node is gone
                                   /weight        the load of the group's leader, with the leader's lease
                    /moves/<topic>                the group that the topic is to move to (ADR 0194)
                    /topics/<topic>               the group that has the topic, in a cluster with groups

The rules of replication read only keys that sort before ``seats/``: one range, and one watch that no change of a seat wakes.
``kept_places`` reads across the groups.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from toymq_py.errors import DamagedData, EtcdError
from toymq_py.names import check_cluster_name
from toymq_py.replication.agreement import (
    DEFAULT_GROUP,
    TTL_S_MAX,
    TTL_S_MIN,
    Answer,
    ClusterSettings,
    GroupState,
    HandOver,
    InSync,
    LeaderKey,
    Member,
    ReplicaId,
    Request,
    RequestKind,
    Seat,
)
from toymq_py.replication.key_values import Found, KeyRange, KeyValue
from toymq_py.storage.checked_json import parse_object

VERSION = 1
"""The version of the settings. A cluster of a later one is refused."""
TEXT_CHARS_MAX = 1000
"""Most characters of each text that a node writes: people read it, and etcd has it in memory."""

_REPLICA = re.compile(r"[0-9a-f]{32}\Z")

T = TypeVar("T")
Decode = Callable[[Mapping[str, Any], KeyValue], object]


class GroupKeys:
    """The keys of one group."""

    def __init__(self, cluster: str, group: str) -> None:
        """Raises: ConfigError for a name that is not legal in a key."""
        self.root = f"/toymq/{check_cluster_name(cluster)}/"
        self.group = f"{self.root}groups/{check_cluster_name(group)}/"
        self.config = f"{self.root if group == DEFAULT_GROUP else self.group}config"
        self.leader = f"{self.group}leader"
        self.in_sync = f"{self.group}isr"
        self.hand_over = f"{self.group}handover"
        self.request = f"{self.group}request"
        self.answer = f"{self.group}answer"
        self.placed = f"{self.group}placed"
        self.weight = f"{self.group}weight"
        self.settings = KeyRange(self.config, self.config + "\0")
        self.state = KeyRange(self.group, f"{self.group}seats/")
        self.seats = KeyRange(f"{self.group}seats/", f"{self.group}seen0")  # "0" follows "/"

    def leader_of(self, group: str) -> str:
        """The key of another group's leader. Raises: ConfigError."""
        return f"{self.root}groups/{check_cluster_name(group)}/leader"

    def placed_of(self, group: str) -> str:
        """The key that tells that all topics of a group have records. Raises: ConfigError."""
        return f"{self.root}groups/{check_cluster_name(group)}/placed"

    def seat(self, replica: ReplicaId) -> str:
        return f"{self.group}seats/{replica}"

    def seen(self, replica: ReplicaId) -> str:
        return f"{self.group}seen/{replica}"

    # -- from etcd. Each raises EtcdError for a value that toymq did not write

    def decode_settings(self, found: Found) -> ClusterSettings | None:
        return next((_decoded(each, _settings) for each in found.keys), None)

    def decode_state(self, found: Found) -> GroupState:
        keys = {each.key: each for each in found.keys}

        def of(key: str, decode: Decode) -> Any:
            return _decoded(keys[key], decode) if key in keys else None

        def if_readable(key: str, decode: Decode) -> Any:
            try:
                return of(key, decode)
            except EtcdError:
                return None  # of a later toymqctl: no reason for the group to stop

        return GroupState(
            of(self.leader, _leader),
            of(self.in_sync, _in_sync),
            of(self.hand_over, _hand_over),
            if_readable(self.request, _request),
            if_readable(self.answer, _answer),
            found.revision,
            self.placed in keys,
        )

    def decode_seats(self, found: Found) -> list[Seat]:
        """The status of each node with a lease, and the last status of other nodes. An unreadable one is left out, so that
        operators see the others."""
        seats: dict[ReplicaId, Seat] = {}
        for each in sorted(found.keys, key=lambda each: not each.key.startswith(self.seats.start)):
            try:
                seat = _seat(_object(each), each.key.startswith(self.seats.start))
            except DamagedData:
                continue
            seats.setdefault(seat.member.replica, seat)
        return sorted(seats.values(), key=lambda seat: (seat.member.name, seat.member.replica))


def decode_leader(found: KeyValue) -> LeaderKey:
    """Decode the key of a leader. Raises: EtcdError."""
    leader: LeaderKey = _decoded(found, _leader)
    return leader


def decode_member(found: KeyValue) -> Member:
    """Decode the node of a seat: the replica and its addresses. Raises: EtcdError."""
    member: Member = _decoded(found, lambda value, _: _member(value))
    return member


# -- to etcd


def decode_in_sync(found: KeyValue) -> InSync:
    """Decode the in-sync set. Raises: EtcdError."""
    in_sync: InSync = _decoded(found, _in_sync)
    return in_sync


def decode_group_settings(found: KeyValue) -> ClusterSettings:
    """Decode the settings of a group. Raises: EtcdError."""
    settings: ClusterSettings = _decoded(found, _settings)
    return settings


def encode_settings(settings: ClusterSettings) -> bytes:
    return _encoded(
        version=VERSION,
        cluster=settings.cluster,
        replicas=settings.replicas,
        min_in_sync=settings.min_in_sync,
        ttl_s=settings.ttl_s,
        **({} if settings.adopted is None else {"was": settings.was, "adopted": settings.adopted}),
    )


def encode_member(member: Member) -> bytes:
    return _encoded(**_of_member(member))


def encode_in_sync(members: Sequence[ReplicaId], epoch: int) -> bytes:
    return _encoded(members=list(members), epoch=epoch)


def encode_hand_over(hand_over: HandOver) -> bytes:
    return _encoded(to=hand_over.to, **{"from": hand_over.epoch})


def encode_request(request: Request) -> bytes:
    return _encoded(kind=request.kind.value, replica=request.replica, in_sync_revision=request.in_sync_revision)


def encode_answer(answer: Answer) -> bytes:
    return _encoded(request=answer.request, accepted=answer.accepted, text=answer.text[:TEXT_CHARS_MAX])


def encode_seat(seat: Seat) -> bytes:
    return _encoded(
        **_of_member(seat.member),
        version=seat.version,
        state=seat.state[:TEXT_CHARS_MAX],
        lag_bytes=seat.lag_bytes,
        seen_ns=seat.seen_ns,
        **({"damaged": seat.damaged} if seat.damaged else {}),
        **({"lags": dict(seat.lags)} if seat.lags else {}),
        **({"waits_for": seat.waits_for[:TEXT_CHARS_MAX]} if seat.waits_for else {}),
    )


def _encoded(**members: object) -> bytes:
    return json.dumps(members, separators=(",", ":")).encode()


def _of_member(member: Member) -> dict[str, str]:
    others = {"http": member.http, "https": member.https, "tls": member.tls}
    known = {"replica": member.replica, "name": member.name, "url": member.url, "repl": member.repl}
    return known | {name: where for name, where in others.items() if where is not None}


# -- one value each


def _decoded(key_value: KeyValue, decode: Decode) -> Any:
    try:
        return decode(_object(key_value), key_value)
    except DamagedData as error:
        raise EtcdError(f"{key_value.key} in etcd: {error}") from None


def _object(key_value: KeyValue) -> dict[str, Any]:
    return parse_object("value", key_value.value)


def _settings(value: Mapping[str, Any], _: KeyValue) -> ClusterSettings:
    if (version := _field(value, "version", int)) != VERSION:
        raise DamagedData(f"version {version} of the settings: this toymq knows {VERSION}")
    ttl_s: Any = value.get("ttl_s")
    if type(ttl_s) not in (int, float) or not TTL_S_MIN <= ttl_s <= TTL_S_MAX:
        raise DamagedData(f"ttl_s must be {TTL_S_MIN:g} to {TTL_S_MAX:g}")
    replicas, min_in_sync = _field(value, "replicas", int), _field(value, "min_in_sync", int)
    if not 1 <= min_in_sync <= replicas:
        raise DamagedData("min_in_sync must be 1 to replicas")
    cluster, before = _field(value, "cluster", str), {}
    if "adopted" in value:
        before = {"was": _field(value, "was", str), "adopted": _replica(value["adopted"])}
    return ClusterSettings(cluster, replicas, min_in_sync, float(ttl_s), **before)


def _leader(value: Mapping[str, Any], key_value: KeyValue) -> LeaderKey:
    return LeaderKey(_member(value), key_value.created, key_value.lease)


def _in_sync(value: Mapping[str, Any], key_value: KeyValue) -> InSync:
    members = _field(value, "members", list)
    return InSync(tuple(_replica(each) for each in members), _field(value, "epoch", int), key_value.changed)


def _hand_over(value: Mapping[str, Any], _: KeyValue) -> HandOver:
    return HandOver(_replica(value.get("to")), _field(value, "from", int))


def _request(value: Mapping[str, Any], key_value: KeyValue) -> Request:
    try:
        kind = RequestKind(value.get("kind"))
    except ValueError:
        raise DamagedData("a request of an unknown kind") from None
    replica = value.get("replica")
    subject = None if replica is None else _replica(replica)
    return Request(kind, subject, _field(value, "in_sync_revision", int), key_value.changed)


def _answer(value: Mapping[str, Any], _: KeyValue) -> Answer:
    return Answer(_field(value, "request", int), _field(value, "accepted", bool), _field(value, "text", str))


def _seat(value: Mapping[str, Any], present: bool) -> Seat:
    lag_bytes = None if value.get("lag_bytes") is None else _field(value, "lag_bytes", int)
    texts = _field(value, "version", str), _field(value, "state", str)
    damaged = _field(value, "damaged", int) if "damaged" in value else 0
    lags = _field(value, "lags", dict) if "lags" in value else {}
    if not all(type(each) is int for each in lags.values()):
        raise DamagedData("lags has something else than bytes")
    pairs = tuple((_replica(replica), size) for replica, size in lags.items())
    waits_for = _field(value, "waits_for", str) if "waits_for" in value else ""
    return Seat(_member(value), *texts, lag_bytes, _field(value, "seen_ns", int), present, damaged, pairs, waits_for)


def _member(value: Mapping[str, Any]) -> Member:
    texts = (_field(value, name, str) for name in ("name", "url", "repl"))
    others = (_field(value, name, str) if name in value else None for name in ("http", "https", "tls"))
    return Member(_replica(value.get("replica")), *texts, *others)


def _replica(value: object) -> ReplicaId:
    if not isinstance(value, str) or _REPLICA.match(value) is None:
        raise DamagedData("a replica has 32 hexadecimal digits")
    return value


def _field(value: Mapping[str, Any], name: str, kind: type[T]) -> T:
    if type(found := value.get(name)) is not kind:  # not isinstance: True is no number here
        raise DamagedData(f"{name} is missing, or of another type than {kind.__name__}")
    return found
