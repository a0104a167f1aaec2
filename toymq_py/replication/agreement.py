"""The agreement of a group's nodes: which replica leads, and which may be elected.

Contract: replication.md, section 3; ADR 0097. Values, and the calls that a node makes. etcd keeps the values; ``EtcdAgreement``
makes the calls over its JSON gateway, a test's ``SimulatedEtcd`` in memory. Nothing here decides anything.
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
        cluster: a UUID; a data directory that has another belongs elsewhere.
        replicas: copies of the data, 2 or 3: below, ``show`` and the alerts say so.
        min_in_sync: copies, the leader's included, without which publishes are refused.
        ttl_s: a leader is replaced when it has not renewed its lease for so long.
        was: the cluster whose copies may go on in this one, after etcd had lost what it knew; None: none.
        adopted: the replica of that one with which this one begins: no other may begin.
    """

    cluster: str
    replicas: int
    min_in_sync: int
    ttl_s: float = DEFAULT_TTL_S
    was: str | None = None
    adopted: ReplicaId | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """A replica and its node. ``name``: for people; ``url``: HOST:PORT for clients; ``repl``: HOST:PORT for followers; ``http``
    and ``https``: HOST:PORT of its gateway, ``tls`` for clients over TLS, each "" without one that others reach, None of a node
    that does not say so."""

    replica: ReplicaId
    name: str
    url: str
    repl: str
    http: str | None = None
    https: str | None = None
    tls: str | None = None


@dataclass(frozen=True, slots=True)
class LeaderKey:
    """The leader. ``epoch``: the revision that made the key; ``lease``: the key goes with it."""

    member: Member
    epoch: int
    lease: int


@dataclass(frozen=True, slots=True)
class InSync:
    """The replicas that may be elected. ``epoch``: of the leader that wrote the set; ``revision``: of its last change, which
    the next change compares."""

    members: tuple[ReplicaId, ...]
    epoch: int
    revision: int


@dataclass(frozen=True, slots=True)
class HandOver:
    """A leader of ``epoch`` has left its place to a replica: the others wait a second before they stand for election."""

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
        kind: what is asked, and of which node.
        replica: its object.
        in_sync_revision: of the in-sync set that the operator saw. FORCE compares it in T6: no other loss was accepted.
        revision: of the request itself, for ``answer``; 0 in one that is not sent yet.
    """

    kind: RequestKind
    replica: ReplicaId | None
    in_sync_revision: int
    revision: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """A node's answer to a request. ``request``: its revision; ``accepted``: it is done, or begun; ``text``: for people."""

    request: int
    accepted: bool
    text: str


@dataclass(frozen=True, slots=True)
class GroupState:
    """Everything of a group that rules read, at one revision; None where there is no key. ``placed``: a leader with ``--group``
    has served the group, so that each of its topics has a record in etcd."""

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
        version: of toymq.
        state: LOOKING, JOINING, FOLLOWING, OPENING, LEADING; or words, when it waits for something.
        lag_bytes: what a follower has not applied; None when it does not know.
        damaged: segments of its copy that the scrub found damaged.
        lags: of a leader: what each follower has not acknowledged, in bytes, as it was lately.
        waits_for: why it neither leads nor follows; of a leader, which groups refuse it; "" when all is well.
        seen_ns: wall time of the node when it wrote this.
        present: its lease lives. Set by ``seats``; ``put_seat`` ignores it.
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
    """The outcome of an answered transaction. ``done``: its compares held; ``revision``: its own then, otherwise the current
    one."""

    done: bool
    revision: int


class Agreement(Protocol):
    """The calls of one node. Every call may raise ``EtcdError``: there was no answer, or one that cannot be trusted
    (``EtcdWentBack``: etcd has forgotten what this process has seen). The outcome of a transaction is unknown then. A call ends
    within a third of the TTL, ``changed`` excepted.

    Cancelling a call that changes something leaves its outcome unknown, too.
    """

    async def settings(self) -> ClusterSettings | None:
        """The settings that the cluster was made with; None: it was not made."""

    async def create_settings(self, settings: ClusterSettings) -> Outcome:
        """Write the settings of a new cluster, unless it exists."""

    async def adopt(self, settings: ClusterSettings) -> Outcome:
        """Replace the settings that ``settings`` has returned last, and forget the in-sync set. Not done when there is a
        leader, or when they were changed since."""

    async def read(self) -> GroupState:
        """The group's present state, read linearizably."""

    async def grant(self, ttl_s: float) -> int:
        """A new lease. Returns: its id, above 0."""

    async def renew(self, lease: int) -> None:
        """Let the lease live its whole TTL from now. Raises: LeaseLost when it is gone."""

    async def revoke(self, lease: int) -> None:
        """End a lease, and its keys with it. No error when it is gone."""

    async def begin(self, me: Member, lease: int) -> Outcome:
        """T1: lead a group that has no in-sync set, as its only member. Not done where the cluster has no settings, or not
        those that ``settings`` has returned.
        The epoch is the outcome's revision. T1, T2, T6 raise LeaseLost when the lease is gone: then they did not happen."""

    async def elect(self, me: Member, lease: int, in_sync_revision: int) -> Outcome:
        """T2: lead, when there is no leader and the in-sync set is the one read. The epoch is the outcome's revision."""

    async def change_in_sync(self, epoch: int, in_sync_revision: int, members: Sequence[ReplicaId]) -> Outcome:
        """T3: write the in-sync set, when the leader is that of ``epoch`` and the set is the one read."""

    async def hand_over(self, epoch: int, to: ReplicaId, lease: int) -> Outcome:
        """T4: give up leading in favour of ``to``. ``lease``: granted for it, for ``HAND_OVER_TTL_S``."""

    async def force(self, me: Member, lease: int, in_sync_revision: int) -> Outcome:
        """T6: lead as the only member of the in-sync set, in it before or not. Compares what T2 does."""

    async def ask(self, request: Request, lease: int) -> Outcome:
        """Send an operator's request, unless another waits. The outcome's revision is the request's."""

    async def answer(self, answer: Answer) -> Outcome:
        """Take a request, and write its answer. Not done when the request is gone, or another node was first."""

    async def put_seat(self, seat: Seat, lease: int) -> None:
        """Write this node's status, shown as present for as long as the lease lives; the text stays as its last one."""

    async def forget_seat(self, replica: ReplicaId) -> None:
        """Forget a node that does not come back. No error when it is not known."""

    async def seats(self) -> list[Seat]:
        """Every known node, in the order of names."""

    async def changed(self, since: int) -> None:
        """Return when anything that ``read`` returns has changed after the revision ``since``. May return early, and does after
        one TTL: a watch can be silent because nothing happens or because its etcd member is cut off. The caller reads again."""

    async def close(self) -> None:
        """End the connections. A call under way raises ``EtcdError``."""
