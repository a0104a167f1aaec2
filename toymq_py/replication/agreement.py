"""The agreement: what the nodes of a group keep in etcd about which replica leads, and which may be elected.

Contract: replication.md, section 3; ADR 0097. Has the values, and the interface of the calls that a node makes.
``EtcdAgreement`` implements them over etcd's JSON gateway, a test's ``SimulatedEtcd`` in memory. Nothing here decides anything.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

ReplicaId = str
"""The id of a copy: 32 hexadecimal digits, made with the data directory."""

DEFAULT_GROUP = "g0"
"""The group of a cluster with one group, whose nodes were not told a name."""
DEFAULT_TTL_S = 3.0
TTL_S_MIN = 2.0
"""The shortest lease: etcd raises a shorter one to this."""
TTL_S_MAX = 60.0
"""The longest lease: a dead leader is missed for so long."""
HAND_OVER_TTL_S = 5.0
"""How long others leave the election to the replica that a hand-over names."""
REQUEST_TTL_S = 30.0
"""How long an operator's request waits for the node that has to take it."""


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """What all nodes of a cluster share, written once by ``toymqctl cluster init``.

    Attributes:
        cluster: a UUID; a data directory with another UUID belongs to another cluster.
        replicas: the wanted number of copies, 2 or 3; with fewer, ``show`` and the alerts say so.
        min_in_sync: the number of copies in sync, with the leader's, below which publishes are refused.
        ttl_s: the time without a renewal of its lease after which a leader is replaced.
        was: the UUID of the cluster whose copies continue in this one, after etcd had lost its data; None without one.
        adopted: the only replica of that cluster that may begin as this one's leader.
    """

    cluster: str
    replicas: int
    min_in_sync: int
    ttl_s: float = DEFAULT_TTL_S
    was: str | None = None
    adopted: ReplicaId | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """A replica and the addresses of its node, each HOST:PORT. ``name``: for people; ``url``: for clients; ``repl``: for
    followers; ``http`` and ``https``: of the gateway; ``tls``: for clients over TLS. The last three are "" if other machines
    cannot reach any, None if an older node did not publish them."""

    replica: ReplicaId
    name: str
    url: str
    repl: str
    http: str | None = None
    https: str | None = None
    tls: str | None = None


@dataclass(frozen=True, slots=True)
class LeaderKey:
    """The leader's key in etcd. ``epoch``: the revision that created the key; ``lease``: the lease with which it ends."""

    member: Member
    epoch: int
    lease: int


@dataclass(frozen=True, slots=True)
class InSync:
    """The in-sync set: the replicas that may be elected. ``epoch``: that of the leader that wrote it; ``revision``: that of its
    last change, which the next change compares."""

    members: tuple[ReplicaId, ...]
    epoch: int
    revision: int


@dataclass(frozen=True, slots=True)
class HandOver:
    """The leader of ``epoch`` has stepped down in favour of a replica: other replicas wait a second before they stand for
    election."""

    to: ReplicaId
    epoch: int


class RequestKind(enum.Enum):
    """The kind of an operator's request to a node."""

    HAND_OVER = "hand-over"
    """Asks the leader to leave its place to ``replica``, or to the follower with the least lag (None)."""
    FORCE = "force"
    """Asks ``replica`` to lead (T6), though it may lack messages."""
    REMOVE = "remove"
    """Asks the leader to take ``replica``, which does not come back, out of the in-sync set."""


@dataclass(frozen=True, slots=True)
class Request:
    """An operator's request to a node. It expires after ``REQUEST_TTL_S``, so that a node never carries it out much later.

    Attributes:
        kind: the action, which also tells which node takes the request.
        replica: the replica that the action is about.
        in_sync_revision: the revision of the in-sync set that the operator saw. FORCE compares it in transaction T6, since
            the operator accepted the loss of that state only.
        revision: the revision of the request itself, for ``answer``; 0 before it is sent.
    """

    kind: RequestKind
    replica: ReplicaId | None
    in_sync_revision: int
    revision: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """A node's answer to a request. ``request``: the request's revision; ``accepted``: it is done, or begun; ``text``: for
    people."""

    request: int
    accepted: bool
    text: str


@dataclass(frozen=True, slots=True)
class GroupState:
    """All keys of a group that the rules of replication read, at one revision; None for a missing key. ``placed``: a leader
    with ``--group`` has served the group, so that each of its topics has a record in etcd."""

    leader: LeaderKey | None
    in_sync: InSync | None
    hand_over: HandOver | None
    request: Request | None
    answer: Answer | None
    revision: int
    placed: bool = False


@dataclass(frozen=True, slots=True)
class Seat:
    """The status of a node, as the node reports it, for people: no rule reads it.

    Attributes:
        member: the replica and its addresses.
        version: the node's version of toymq.
        state: LOOKING, JOINING, FOLLOWING, OPENING, LEADING; or words, when it waits for something.
        lag_bytes: how many bytes a follower has not applied; None when it does not know.
        damaged: segments of its copy that the scrub found damaged.
        lags: on a leader: how many bytes each follower had not acknowledged lately.
        waits_for: why it neither leads nor follows; on a leader, which groups refuse it; "" when all is well.
        seen_ns: the wall time of the node when it wrote this.
        present: whether the node's lease lives. Set by ``seats``; ``put_seat`` ignores it.
    """

    member: Member
    version: str
    state: str
    lag_bytes: int | None
    seen_ns: int
    present: bool = True
    damaged: int = 0
    lags: tuple[tuple[ReplicaId, int], ...] = ()
    waits_for: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of an answered transaction. ``done``: its compares held; ``revision``: that of the transaction if it is done,
    else etcd's current one."""

    done: bool
    revision: int


class Agreement(Protocol):
    """The interface of the calls that a node makes. Every call may raise ``EtcdError``: there was no answer, or one that cannot
    be trusted (``EtcdWentBack``: etcd has forgotten what this process has seen). The outcome of a transaction is then unknown.
    Each call except ``changed`` ends within a third of the TTL.

    Cancelling a call that changes something leaves its outcome unknown, too.
    """

    async def settings(self) -> ClusterSettings | None:
        """The settings that the cluster was initialised with; None before that."""

    async def create_settings(self, settings: ClusterSettings) -> Outcome:
        """Write the settings of a new cluster, unless it exists."""

    async def adopt(self, settings: ClusterSettings) -> Outcome:
        """Replace the settings that ``settings`` returned last, and forget the in-sync set. Not done when there is a leader, or
        when the settings were changed since."""

    async def read(self) -> GroupState:
        """The group's current state, read linearizably."""

    async def grant(self, ttl_s: float) -> int:
        """Get a new lease. Returns: its id, above 0."""

    async def renew(self, lease: int) -> None:
        """Renew a lease for its whole TTL. Raises: LeaseLost when it is gone."""

    async def revoke(self, lease: int) -> None:
        """End a lease, and its keys with it. No error when it is gone."""

    async def begin(self, me: Member, lease: int) -> Outcome:
        """T1: lead a group that has no in-sync set, as its only member. Not done if the cluster has no settings, or others than
        ``settings`` returned.
        The epoch is the outcome's revision. T1, T2, T6 raise LeaseLost when the lease is gone: then they did not happen."""

    async def elect(self, me: Member, lease: int, in_sync_revision: int) -> Outcome:
        """T2: lead, if there is no leader and the in-sync set has this revision. The epoch is the outcome's revision."""

    async def change_in_sync(self, epoch: int, in_sync_revision: int, members: Sequence[ReplicaId]) -> Outcome:
        """T3: replace the in-sync set, if the leader is still that of ``epoch`` and the set still has this revision."""

    async def hand_over(self, epoch: int, to: ReplicaId, lease: int) -> Outcome:
        """T4: give up leading in favour of ``to``. ``lease``: one that was granted for this key, for ``HAND_OVER_TTL_S``."""

    async def force(self, me: Member, lease: int, in_sync_revision: int) -> Outcome:
        """T6: lead as the only member of the in-sync set, whether this replica was in it or not. Has the conditions of T2."""

    async def ask(self, request: Request, lease: int) -> Outcome:
        """Send an operator's request, unless another waits. The outcome's revision is the request's."""

    async def answer(self, answer: Answer) -> Outcome:
        """Take a request, and write its answer. Not done when the request is gone, or another node was first."""

    async def put_seat(self, seat: Seat, lease: int) -> None:
        """Write this node's status. It is shown as present while the lease lives, and afterwards as the last known one."""

    async def forget_seat(self, replica: ReplicaId) -> None:
        """Forget a node that does not come back. No error when it is not known."""

    async def seats(self) -> list[Seat]:
        """The status of every known node, in the order of names."""

    async def changed(self, since: int) -> None:
        """Return when anything that ``read`` returns has changed after the revision ``since``. May return early, and does after
        one TTL: a watch can be silent because nothing happens or because its etcd member is cut off. The caller reads again."""

    async def close(self) -> None:
        """End the connections. A call under way raises ``EtcdError``."""
