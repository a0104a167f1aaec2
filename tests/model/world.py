"""The worlds of ``replication.py``: what etcd holds, the copies, and worlds that differ only by the copies' names."""

from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import NamedTuple

LOOKING, JOINING, FOLLOWING, OPENING, LEADING, HOLDING, ENDING, FORCING = range(8)
"""Roles. HOLDING: publishes wait for a hand-over. ENDING: BYE was said, T4 comes. FORCING: only settles its T6."""
FOLLOWERS = (LOOKING, JOINING, FOLLOWING)
SERVING = (LEADING, HOLDING)
NO_NODE = -1


class Node(NamedTuple):
    """One copy. Sets of nodes are bit masks. The second group is the memory of a leader, the third that of a follower."""

    role: int = LOOKING
    log: tuple[int, ...] = ()
    durable: int = 0
    """Records that a power cut leaves."""
    promised: int = 0
    blank: bool = False
    """The disk was lost: a new replica, which is in no set under the old one's name."""
    whole: bool = True
    """No copy is under way or was cut short; ``replica.json`` says so."""

    epoch: int = 0
    known: int = 0
    """The in-sync set as this leader last knew it for certain."""
    unsettled: tuple[int, ...] = ()
    """Values of its T3s without an answer."""
    required: int = 0
    counted: int = NO_NODE
    """The follower that is in ``required`` already, and not yet proposed by T3; ``barrier``: how much it must have synced."""
    barrier: int = 0

    source: int = NO_NODE
    stream: int = 0
    """The epoch of the stream from ``source``."""
    queue: tuple[int, ...] = ()
    saw: int = 0
    """The epoch of the leader that it read from etcd, not joined yet."""
    acked_epoch: int = 0
    acked: int = 0
    """The newest ack, perhaps still under way: so many records are synced, of the stream of that epoch."""


class World(NamedTuple):
    """etcd, the copies, and what was said. ``late_*``: transactions without an answer that may still happen."""

    nodes: tuple[Node, ...]
    leader: int = NO_NODE
    epoch: int = 0
    isr: int = 0
    late_t2: int = 0
    late_t3: tuple[int, ...] = ()
    late_t6: int = NO_NODE
    acked: int = 0
    """Records that got OK, less those that ``force`` gave up."""
    forgone: int = 0
    """Records that ``force`` gave up by declaration."""
    forced: int = 0
    """The epoch that ``force`` began: what older leaders say OK to from then on is given up, too."""
    records: int = 0
    faults: int = 0
    unknown: int = 0
    handovers: int = 0
    forces: int = 0
    wipes: int = 0
    handed: int = NO_NODE
    """The node whose hand-over ended and after which none leads yet."""
    missed: bool = False
    """The next leader lacked something of it."""


def bits(mask: int) -> list[int]:
    """Return the members of a set."""
    return [n for n in range(mask.bit_length()) if mask >> n & 1]


def of_log(log: tuple[int, ...]) -> int:
    """Return the set of the records of a log."""
    mask = 0
    for record in log:
        mask |= 1 << record
    return mask


def common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Return how many records two logs share from their beginning."""
    shared = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        shared += 1
    return shared


def with_node(w: World, n: int, x: Node) -> World:
    return w._replace(nodes=(*w.nodes[:n], x, *w.nodes[n + 1 :]))


def unlinked(y: Node) -> Node:
    """Return the node with its stream ended; what the stream brought stays."""
    return y._replace(role=y.role if y.role in (OPENING, *SERVING) else LOOKING, source=NO_NODE, stream=0, queue=(), saw=0)


def stepped_down(x: Node) -> Node:
    return Node(LOOKING, x.log, x.durable, x.promised, acked_epoch=x.acked_epoch, acked=x.acked)


def opening(x: Node, epoch: int, isr: int) -> Node:
    return Node(OPENING, x.log, x.durable, x.promised, epoch=epoch, known=isr)


def renamed(w: World, order: tuple[int, ...]) -> World:
    """Give copy ``n`` the name ``order[n]``."""

    def mask(members: int) -> int:
        return sum(1 << order[n] for n in bits(members))

    def name(n: int) -> int:
        return n if n == NO_NODE else order[n]

    nodes = list(w.nodes)
    for n, x in enumerate(w.nodes):
        nodes[order[n]] = x._replace(
            known=mask(x.known), unsettled=tuple(sorted(map(mask, x.unsettled))), required=mask(x.required),
            counted=name(x.counted), source=name(x.source),
        )  # fmt: skip
    return w._replace(
        nodes=tuple(nodes), leader=name(w.leader), isr=mask(w.isr), late_t2=mask(w.late_t2),
        late_t3=tuple(sorted(map(mask, w.late_t3))), late_t6=name(w.late_t6), handed=name(w.handed),
    )  # fmt: skip


def shape(x: Node) -> tuple[object, ...]:
    """Return what a copy is, without the names of others."""
    return (x.source == NO_NODE, x.counted == NO_NODE, len(x.unsettled), *x[:7], x.barrier, *x[13:])


def orders(signs: Sequence[tuple[object, ...]]) -> Iterator[tuple[int, ...] | None]:
    """Yield the namings that sort the copies by their signs; None is the one they have."""
    ranked = sorted(signs)
    if len(set(ranked)) == len(signs):
        yield None if ranked == signs else tuple(ranked.index(sign) for sign in signs)
        return
    for order in permutations(range(len(signs))):
        if all(sign == ranked[place] for sign, place in zip(signs, order, strict=True)):
            yield order
