"""The replication protocol as a model at the grain of records: elections, in-sync set, streams, hand-over, force.

State. ``World`` is what etcd holds (leader key, epoch, in-sync set, transactions that may still happen) and one ``Node`` a
copy: its log, how much of it a power cut leaves, its role and its stream. A step is one atomic thing that one party does. A
party that takes no step is paused, cut off or slow, and nothing bounds for how long; the lease may end at any time, so no clock
is trusted. A restart is part of the power cut: a node that is down is one that takes no step.

Transactions (T1 to T4, T6 is ``force``). Each happens with an answer, or is sent and times out: then it may happen at any later
moment at which its compares still hold, or never. T4 and T5 only delete the leader key, like the end of a lease.

OK is given as early as it may be, in the step that makes it due: no rule looks at it, so later is never worse.

Bounds: nodes, records, epochs, faults (power cuts; a lost disk is the last one), transactions without an answer, hand-overs,
uses of ``force``, wipes of etcd. Not modelled: several files (``join.py``), ``min_in_sync`` (it only refuses publishes), disk
errors (a follower that fails is dropped, a leader that fails ends), cached reads of etcd (reads are linearizable), an etcd that
goes back to an old snapshot (the mutant ``etcd_restored`` shows what that costs), whether anything happens at last.

Promises, in ``broken``: a leader in office has all that got OK; so has, synced, every copy that may be elected; in-sync copies
agree; after a hand-over the next leader has all that the old one had; ``force`` loses only what got OK before it and is not
synced on the forced copy, or gets OK after it from a leader of an older epoch.
"""

from collections.abc import Iterator
from typing import Any

from tests.model.bounds import Bounds
from tests.model.explore import Action, Key
from tests.model.rules import sentence
from tests.model.world import (
    ENDING,
    FOLLOWERS,
    FOLLOWING,
    FORCING,
    HOLDING,
    JOINING,
    LEADING,
    LOOKING,
    NO_NODE,
    OPENING,
    SERVING,
    Node,
    World,
    bits,
    common,
    of_log,
    opening,
    orders,
    renamed,
    shape,
    stepped_down,
    unlinked,
    with_node,
)  # fmt: skip

Steps = Iterator[tuple[Action, World]]


class Replication:
    """The model. ``mutant``: one rule of ``rules.RECORD_RULES`` is left out."""

    def __init__(self, bounds: Bounds, mutant: str | None = None) -> None:
        self.bounds = bounds
        self.mutant = mutant
        self._ids: dict[Node, int] = {}
        self._nodes: list[Node] = []
        self._shapes: list[tuple[object, ...]] = []
        self._all = (1 << bounds.nodes) - 1

    def initial(self) -> World:
        b = self.bounds
        world = World(
            (Node(),) * b.nodes, records=b.records, faults=b.faults, unknown=b.unknown, handovers=b.handovers,
            forces=b.forces, wipes=b.wipes,
        )  # fmt: skip
        if b.begin:
            return world
        leads = Node(LEADING, promised=1, epoch=1, known=self._all, required=self._all & ~1)
        follows = Node(FOLLOWING, promised=1, source=0, stream=1, acked_epoch=1)
        return world._replace(nodes=(leads, *(follows,) * (b.nodes - 1)), leader=0, epoch=1, isr=self._all)

    def steps(self, world: World) -> Steps:
        for action, after in self._silent_steps(world):
            yield action, self._answer(after)

    def _silent_steps(self, w: World) -> Steps:
        yield from self._etcd(w)
        for n, x in enumerate(w.nodes):
            if w.faults:
                yield from self._faults(w, n, x)
            if x.role in SERVING:
                yield from self._leads(w, n, x)
                yield from self._in_sync_set(w, n, x)
                yield from self._joins(w, n, x)
                if self.mutant == "no_epoch_check":
                    yield from self._follows(w, n, x)
            elif x.role == ENDING:
                yield from self._ends(w, n, x)
            elif x.role == OPENING:
                opened = x._replace(
                    role=LEADING, promised=x.epoch, durable=len(x.log), known=x.known,
                    required=0 if self.mutant == "forget_isr" else x.known & ~(1 << n),
                )  # fmt: skip
                yield ("opens", n, x.epoch), self._handed(with_node(w, n, opened), n)
            elif x.role == FORCING:
                settled = x._replace(role=OPENING, epoch=w.epoch, known=w.isr) if w.leader == n else x._replace(role=LOOKING)
                yield ("settles", n), with_node(w, n, settled)._replace(late_t6=NO_NODE if w.late_t6 == n else w.late_t6)
            else:
                yield from self._follows(w, n, x)
                if (not x.blank or self.mutant == "same_identity") and x.whole:
                    yield from self._elections(w, n, x)
                    yield from self._operator(w, n, x)

    # What OK means

    def _answer(self, w: World) -> World:
        """Give OK to all records that may get it now."""
        for x in w.nodes:
            if x.role not in SERVING and not (x.role == ENDING and self.mutant == "answers_after_bye"):
                continue
            high = x.durable
            if self.mutant != "ack_local":
                for r in bits(x.required):
                    y = w.nodes[r]
                    high = min(high, y.acked if y.acked_epoch == x.epoch else 0)
            new = of_log(x.log[:high]) & ~w.acked & ~w.forgone
            if new and x.epoch < w.forced:
                w = w._replace(forgone=w.forgone | new)  # said by a leader that the operator declared dead
            elif new:
                w = w._replace(acked=w.acked | new)
        return w

    def _handed(self, w: World, n: int) -> World:
        """Judge a hand-over when the next leader opens, unless that one was deposed before."""
        if n == w.handed:
            return w._replace(handed=NO_NODE)
        if w.handed == NO_NODE or w.leader != n or w.epoch != w.nodes[n].epoch:
            return w
        old = w.nodes[w.handed].log
        return w._replace(handed=NO_NODE, missed=w.nodes[n].log[: len(old)] != old)

    # etcd

    def _etcd(self, w: World) -> Steps:
        if w.leader != NO_NODE:
            if w.epoch < self.bounds.epochs:
                yield ("expires",), w._replace(leader=NO_NODE, late_t3=())
            for value in w.late_t3:
                yield ("late_t3", value), self._put_isr(w, value)
        elif w.epoch < self.bounds.epochs:
            for n in bits(w.late_t2):
                after = w if w.isr else self._put_isr(w, 1 << n)
                yield ("late_t2", n, w.epoch + 1), after._replace(
                    leader=n, epoch=w.epoch + 1, late_t2=after.late_t2 & ~(1 << n)
                )
            if w.late_t6 != NO_NODE:
                yield ("late_t6", w.late_t6), self._forced(w, w.late_t6)
        if w.wipes:
            if self.mutant == "etcd_restored":
                yield ("restored",), self._put_isr(w, self._all)._replace(leader=NO_NODE, epoch=1, wipes=w.wipes - 1)
            else:
                yield ("wiped",), self._put_isr(w, 0)._replace(leader=NO_NODE, epoch=0, wipes=w.wipes - 1)

    def _put_isr(self, w: World, value: int) -> World:
        """Write the in-sync set. Its revision grows, so no transaction that compared the one before can happen any more."""
        return w._replace(isr=value, late_t3=(), late_t2=w.late_t2 if self.mutant == "stale_isr" else 0, late_t6=NO_NODE)

    # Faults

    def _faults(self, w: World, n: int, x: Node) -> Steps:
        settled = w._replace(faults=w.faults - 1)
        if w.late_t6 == n and self.mutant != "lease_kept":
            settled = settled._replace(late_t6=NO_NODE)  # START revokes the lease under which it would put the leader key
        for keep in range(x.durable, len(x.log) + 1):
            for promised in {x.promised, 0} if self.mutant == "promise_unsynced" else (x.promised,):
                left = Node(LOOKING, x.log[:keep], keep, promised, x.blank, x.whole, acked_epoch=x.acked_epoch, acked=x.acked)
                yield ("power", n, keep, len(x.log)), with_node(settled, n, left)
        others = [m for m in bits(w.isr & ~(1 << n)) if not w.nodes[m].blank]
        if others and w.isr >> n & 1 and not x.blank:  # losing every copy is the fault of no protocol
            yield ("disk", n), with_node(settled, n, Node(blank=True))._replace(faults=0, late_t2=w.late_t2 & ~(1 << n))

    # A leader

    def _leads(self, w: World, n: int, x: Node) -> Steps:
        if x.role == LEADING and w.records:
            yield self._append(w, n, x)
        if x.durable < len(x.log):
            yield ("syncs", n), with_node(w, n, x._replace(durable=len(x.log)))
        if not self._named(w, x):
            yield ("fenced", n, x.epoch), with_node(w, n, stepped_down(x))
        elif x.role == LEADING and w.handovers and x.required:
            yield ("holds", n), with_node(w._replace(handovers=w.handovers - 1), n, x._replace(role=HOLDING))
        if x.role == HOLDING:
            yield ("calls_off", n), with_node(w, n, x._replace(role=LEADING))
            synced = [w.nodes[r].acked_epoch == x.epoch and w.nodes[r].acked == len(x.log) for r in bits(x.required)]
            if (x.durable == len(x.log) and all(synced)) or self.mutant == "bye_unsettled":
                required = 0 if self.mutant == "answers_after_bye" else x.required
                after = with_node(w, n, x._replace(role=ENDING, required=required))
                for m, y in enumerate(w.nodes):
                    if y.source == n and y.stream == x.epoch:
                        after = with_node(after, m, unlinked(y))
                yield ("bye", n), after

    def _ends(self, w: World, n: int, x: Node) -> Steps:
        """End a term by T4. Without an answer the term has ended, too; a late T4 is like the end of the lease."""
        if self.mutant == "answers_after_bye" and w.records:
            yield self._append(w, n, x._replace(durable=len(x.log) + 1))
        after = with_node(w, n, stepped_down(x))
        if self._named(w, x):
            yield ("t4_unanswered", n), after._replace(handed=n)
            after = after._replace(leader=NO_NODE, late_t3=(), handed=n)
        yield ("t4", n), after

    def _append(self, w: World, n: int, x: Node) -> tuple[Action, World]:
        record = self.bounds.records - w.records
        after = with_node(w, n, x._replace(log=(*x.log, record)))
        for m, y in enumerate(w.nodes):
            if y.source == n and y.stream == x.epoch and y.role == FOLLOWING:
                after = with_node(after, m, y._replace(queue=(*y.queue, record)))
        return ("appends", n, x.epoch, record), after._replace(records=w.records - 1)

    def _named(self, w: World, x: Node) -> bool:
        """The compare of T3 and T4: the leader key exists, and its create_revision is this epoch."""
        return w.leader != NO_NODE and w.epoch == x.epoch

    # The in-sync set: T3

    def _in_sync_set(self, w: World, n: int, x: Node) -> Steps:
        for r in bits(x.required):
            after = w
            if w.nodes[r].source == n and w.nodes[r].stream == x.epoch:
                after = with_node(w, r, unlinked(w.nodes[r]))
            if self.mutant == "shrink_unfenced":
                yield ("drops", n, r), self._t3_done(after, n, x._replace(known=w.isr), w.isr & ~(1 << r))
            elif self.mutant == "shrink_after_ack":
                yield ("forgets", n, r), with_node(after, n, x._replace(required=x.required & ~(1 << r)))
            elif r == x.counted and not x.known >> r & 1 and not any(value >> r & 1 for value in x.unsettled):
                uncounted = x._replace(required=x.required & ~(1 << r), counted=NO_NODE, barrier=0)
                yield ("uncounts", n, r), with_node(after, n, uncounted)
            else:
                yield from self._t3(w, after, n, x, x.known & ~(1 << r), ("drops", n, r))
        for m, y in enumerate(w.nodes):
            if y.source == n and y.stream == x.epoch and y.role == FOLLOWING and y.acked_epoch == x.epoch:
                yield from self._grows(w, n, x, m, y)
        if x.unsettled and self._named(w, x):
            if not w.late_t3:  # one of them happened: the revision is another
                yield ("reads", n), self._t3_done(w, n, x, w.isr)
            elif self.mutant == "read_settles":
                yield ("reads", n), with_node(w, n, x._replace(unsettled=(), required=x.known & ~(1 << n)))

    def _grows(self, w: World, n: int, x: Node, m: int, y: Node) -> Steps:
        if self.mutant == "expand_count_late":
            if not x.known >> m & 1 and y.acked == len(x.log) and self._named(w, x):
                yield ("adds", n, m), with_node(self._put_isr(w, x.known | 1 << m), n, x._replace(known=x.known | 1 << m))
            elif x.known >> m & 1 and not x.required >> m & 1:
                yield ("counts", n, m), with_node(w, n, x._replace(required=x.required | 1 << m))
        elif not x.required >> m & 1 and x.counted == NO_NODE:
            barrier = len(x.log)
            if self.mutant == "expand_early":
                barrier = 0
            elif self.mutant == "expand_on_beat":
                barrier = max(1, barrier - 1)
            yield ("counts", n, m), with_node(w, n, x._replace(required=x.required | 1 << m, counted=m, barrier=barrier))
        if x.counted == m and y.acked >= x.barrier:
            yield from self._t3(w, w, n, x._replace(counted=NO_NODE, barrier=0), x.known | 1 << m, ("adds", n, m))

    def _t3(self, w: World, done: World, n: int, x: Node, value: int, action: Action) -> Steps:
        """Propose an in-sync set: with an answer, or without one, when it may happen later. ``done``: the world once it is
        answered."""
        if not self._named(w, x) or (x.unsettled and not w.late_t3):
            return  # etcd refuses: another epoch, or another revision
        yield action, self._t3_done(done, n, x, value)
        if w.unknown and value not in x.unsettled:
            asked = x._replace(unsettled=tuple(sorted((*x.unsettled, value))))
            if self.mutant == "timeout_is_no":
                asked = x._replace(required=x.known & ~(1 << n))
            elif self.mutant == "timeout_is_yes":
                asked = x._replace(known=value, required=value & ~(1 << n))
            late = tuple(sorted({*w.late_t3, value}))
            yield ("t3_unanswered", *action[1:], value), with_node(w, n, asked)._replace(late_t3=late, unknown=w.unknown - 1)

    def _t3_done(self, w: World, n: int, x: Node, value: int) -> World:
        counted = 1 << x.counted if x.counted != NO_NODE and not value >> x.counted & 1 else 0
        after = x._replace(known=value, unsettled=(), required=value & ~(1 << n) | counted)
        if not counted:
            after = after._replace(counted=NO_NODE, barrier=0)
        return with_node(self._put_isr(w, value), n, after)

    # A follower

    def _joins(self, w: World, n: int, x: Node) -> Steps:
        """FOLLOW: each join begins outside the in-sync set, and outside each set that etcd may still get."""
        members = x.known | x.required
        for value in x.unsettled:
            members |= value
        if self.mutant == "join_unsettled":
            members = x.known
        elif self.mutant in ("wipe_in_isr", "truncate_hw"):
            members = 0
        for m, y in enumerate(w.nodes):
            if m == n or y.role not in FOLLOWERS or members >> m & 1:
                continue
            if x.epoch < y.promised and self.mutant != "no_epoch_check":
                continue
            if y.blank and w.isr >> m & 1:
                continue  # a new replica has a new name; one bit stands for both
            named = w.leader == n and w.epoch == x.epoch
            if not named and x.epoch not in (y.saw, y.stream) and self.mutant != "join_unnamed":
                continue
            joined = Node(
                FOLLOWING, y.log, y.durable, x.epoch, y.blank, source=n, stream=x.epoch, acked_epoch=x.epoch, acked=0
            )
            if not y.blank and y.whole:
                keep = common(y.log, x.log)
                if self.mutant == "no_truncate":
                    keep = len(y.log)
                elif self.mutant == "truncate_hw":
                    keep = min(keep, max(0, y.durable - 1))
                yield ("follows", m, n, keep), with_node(
                    w, m, joined._replace(log=y.log[:keep], durable=min(y.durable, keep), queue=x.log[keep:])
                )
            if self.mutant != "truncate_hw":
                copying = joined._replace(role=JOINING, log=(), durable=0, blank=False, whole=False)
                yield ("copies", m, n), with_node(w, m, copying)

    def _follows(self, w: World, n: int, x: Node) -> Steps:
        if w.leader not in (NO_NODE, n) and x.role in FOLLOWERS and w.epoch not in (x.saw, x.stream):
            yield ("sees", n, w.leader, w.epoch), with_node(w, n, x._replace(saw=w.epoch))
        if x.source == NO_NODE:
            return
        if x.role == JOINING:
            leader = w.nodes[x.source]
            if leader.role in SERVING and leader.epoch == x.stream:
                size = len(leader.log)
                copied = x._replace(role=FOLLOWING, log=leader.log, durable=size, acked=size, whole=True)
                yield ("copied", n), with_node(w, n, copied)
            return
        if x.queue:
            log = (*x.log, x.queue[0])
            after = x._replace(log=log, queue=x.queue[1:])
            if self.mutant == "ack_before_sync":
                after = after._replace(acked_epoch=x.stream, acked=len(log))
            yield ("writes", n, x.queue[0]), with_node(w, n, after)
        if x.durable < len(x.log) or (x.acked_epoch, x.acked) != (x.stream, len(x.log)):
            synced = x._replace(durable=len(x.log), acked_epoch=x.stream, acked=len(x.log))
            yield ("acks", n, len(x.log)), with_node(w, n, synced)

    # Elections: T1, T2, T5

    def _elections(self, w: World, n: int, x: Node) -> Steps:
        old_stream = self.mutant == "no_epoch_check"
        if w.leader == NO_NODE and w.epoch < self.bounds.epochs:
            member = w.isr >> n & 1 or self.mutant == "unclean"
            if not w.isr:  # T1 compares that config is there, and a directory that belongs to a cluster never sends it
                member = (w.wipes == self.bounds.wipes and not x.promised) or self.mutant == "t1_adopts"
            epoch = w.epoch + 1
            if member and (epoch > x.promised or self.mutant == "t1_adopts"):
                won = w if w.isr else self._put_isr(w, 1 << n)
                won_by = Node(OPENING, x.log, x.durable, x.promised, epoch=epoch, known=won.isr)
                if old_stream:
                    won_by = won_by._replace(source=x.source, stream=x.stream, queue=x.queue)
                yield ("elected", n, epoch), with_node(won, n, won_by)._replace(
                    leader=n, epoch=epoch, late_t2=won.late_t2 & ~(1 << n)
                )
            if member and w.unknown and not w.late_t2 >> n & 1:
                asking = x if old_stream else unlinked(x)
                yield ("t2_unanswered", n), with_node(w, n, asking)._replace(late_t2=w.late_t2 | 1 << n, unknown=w.unknown - 1)
        if w.leader == n and w.epoch > x.promised:
            yield ("finds_itself", n, w.epoch), with_node(w, n, opening(x, w.epoch, w.isr))
        elif w.leader == n and self.mutant == "epoch_reused":
            leads = opening(x, w.epoch, w.isr)._replace(role=LEADING, durable=len(x.log), required=w.isr & ~(1 << n))
            yield ("resumes", n, w.epoch), with_node(w, n, leads)
        if self.mutant == "t2_assumed" and w.late_t2 >> n & 1:
            yield ("assumes", n, w.epoch + 1), with_node(w, n, opening(x, w.epoch + 1, w.isr))

    # The operator: T6

    def _operator(self, w: World, n: int, x: Node) -> Steps:
        """Let an operator use ``force``: the node, out of every stream and with a whole directory, makes itself the only member
        and the leader."""
        if not w.forces or w.isr >> n & 1 or not w.isr:
            return
        if self.mutant in ("force_while_led", "force_from_outside"):
            if w.leader == NO_NODE or self.mutant == "force_while_led":
                after = self._forced(w, n)._replace(leader=w.leader, epoch=w.epoch)
                yield ("forced", n), after
            return
        if w.leader != NO_NODE or w.epoch >= self.bounds.epochs:
            return
        yield ("forced", n), with_node(self._forced(w, n), n, opening(x, w.epoch + 1, 1 << n))
        if w.unknown:
            asked = with_node(w, n, unlinked(x)._replace(role=FORCING))
            yield ("t6_unanswered", n), asked._replace(late_t6=n, unknown=w.unknown - 1)

    def _forced(self, w: World, n: int) -> World:
        kept = of_log(w.nodes[n].log[: w.nodes[n].durable])
        epoch = w.epoch if w.leader != NO_NODE else w.epoch + 1
        after = self._put_isr(w, 1 << n)._replace(leader=n, epoch=w.epoch + 1, forced=epoch, forces=w.forces - 1)
        return after._replace(handed=NO_NODE, acked=w.acked & kept, forgone=w.forgone | (w.acked & ~kept))

    # What must never be true

    def broken(self, world: World) -> str | None:
        w = world
        for n, x in enumerate(w.nodes):
            if x.role in SERVING and w.leader == n and w.epoch == x.epoch:
                if lost := w.acked & ~of_log(x.log):
                    return f"{_name(n)} leads epoch {w.epoch} and lacks {_records(lost)}, which got OK"
                for m, y in enumerate(w.nodes):
                    in_sync = w.isr >> m & 1 and x.required >> m & 1 and y.role == FOLLOWING
                    if in_sync and y.source == n and y.stream == x.epoch and y.log != x.log[: len(y.log)]:
                        return f"{_name(m)} is in sync and has {_records(of_log(y.log))} where the leader has another log"
            if w.isr >> n & 1 and not x.blank and (lost := w.acked & ~of_log(x.log[: x.durable])):
                return f"{_name(n)} may be elected and lacks {_records(lost)}, which got OK"
            if w.leader == n and not x.blank and not x.whole:
                return f"{_name(n)} is the leader of epoch {w.epoch} and its copy was cut short"
        return "the leader after a hand-over lacks what the one before had" if w.missed else None

    # Keys and words

    def pack(self, world: World) -> Key:
        """Return the least key over the namings of the copies: no rule looks at a name."""
        w = world
        ids = list(map(self._id, w.nodes))
        signs = [
            (w.leader == n, w.isr >> n & 1, w.late_t2 >> n & 1, w.late_t6 == n, w.handed == n, self._shapes[index])
            for n, index in enumerate(ids)
        ]
        keys: list[Any] = []
        for order in orders(signs):
            if order is None:
                return (*ids, *w[1:])
            w = renamed(world, order)
            keys.append((*map(self._id, w.nodes), *w[1:]))
        return min(keys)

    def unpack(self, key: Key) -> World:
        size = self.bounds.nodes
        indexes: Any = key[:size]
        rest: Any = key[size:]
        return World(tuple([self._nodes[index] for index in indexes]), *rest)

    def _id(self, node: Node) -> int:
        index = self._ids.setdefault(node, len(self._nodes))
        if index == len(self._nodes):
            self._nodes.append(node)
            self._shapes.append(shape(node))
        return index

    def words(self, action: Action) -> str:
        return sentence(action)


def _name(n: int) -> str:
    return "ABCDE"[n]


def _records(mask: int) -> str:
    return "records " + ", ".join(map(str, bits(mask)))
