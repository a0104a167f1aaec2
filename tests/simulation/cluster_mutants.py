"""Mutants of the replication code: each leaves out one rule, under the rule's name in ``tests/model/rules.py``.

``FOUND`` has, for each rule, a seed whose world breaks a promise without it; ``NOT_SHOWN`` says of each other rule why no world
does. After a change of the worlds other seeds are needed: ``python -m tests.simulation --cluster --without RULE --seeds 1000``.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from toymq_py.errors import EtcdError
from toymq_py.replication import decisions, follower_stream, manifest, node
from toymq_py.replication.agreement import GroupState
from toymq_py.replication.content_digests import has_records
from toymq_py.replication.decisions import ComeBack, Decision, Elect, Open, Standing, Wait
from toymq_py.replication.follower_link import _Following
from toymq_py.replication.kept_agreement import KeptAgreement
from toymq_py.replication.key_values import Check, Compare
from toymq_py.replication.leader_link import LeaderLink
from toymq_py.replication.leader_links import LeaderLinks
from toymq_py.replication.link_progress import FollowerSink
from toymq_py.replication.manifest import Action, FilePlan, JoinPlan
from toymq_py.replication.membership import InSyncSet
from toymq_py.replication.operations import OperationReader, Rename
from toymq_py.replication.put_aside import Moved
from toymq_py.replication.replica_file import ReplicaFile
from toymq_py.replication.replica_files import ReplicaFiles
from toymq_py.replication.required import RequiredFollowers
from toymq_py.replication.stream import Stream
from toymq_py.replication.term import Term
from toymq_py.replication.tickets import Tickets

Patch = pytest.MonkeyPatch


def nothing(*_: object, **__: object) -> None:
    """Do nothing, in place of what has to be done."""


def ack_before_sync(patch: Patch) -> None:
    patch.setattr(ReplicaFiles, "sync", nothing)


def ack_local(patch: Patch) -> None:
    patch.setattr(Tickets, "require", nothing)


def _deciding(patch: Patch, instead: Callable[[Decision, GroupState, Standing], Decision]) -> None:
    real = decisions.decide
    patch.setattr(node, "decide", lambda state, standing: instead(real(state, standing), state, standing))


def unclean(patch: Patch) -> None:
    def instead(found: Decision, state: GroupState, standing: Standing) -> Decision:
        if isinstance(found, Wait) and state.in_sync is not None and not standing.copying:
            return Elect(state.in_sync.revision, 0.2)
        return found

    _deciding(patch, instead)


def epoch_reused(patch: Patch) -> None:
    """Leave out rule T5 in its two places: START revokes the lease of the life before, and a node that finds its own leadership
    in etcd must not resume it."""

    def instead(found: Decision, state: GroupState, standing: Standing) -> Decision:
        if isinstance(found, ComeBack) and state.leader is not None and state.in_sync is not None:
            return Open(state.leader.epoch, state.in_sync.members, state.in_sync.revision)
        return found

    async def start(self: node.Node) -> None:
        await self._new_lease()

    patch.setattr(node.Node, "_start", start)
    _deciding(patch, instead)


def stale_isr(patch: Patch) -> None:
    patch.setattr(KeptAgreement, "_no_leader_and", lambda self, revision: [Compare(self._keys.leader, Check.ABSENT)])


def shrink_unfenced(patch: Patch) -> None:
    real = KeptAgreement._commit

    async def commit(self: KeptAgreement, compares: Any, *changes: Any) -> Any:
        t3 = {Check.CREATED_AT, Check.CHANGED_AT} == {compare.check for compare in compares}
        return await real(self, [] if t3 else compares, *changes)

    patch.setattr(KeptAgreement, "_commit", commit)


def shrink_after_ack(patch: Patch) -> None:
    async def drop(self: RequiredFollowers, replica: str) -> None:
        self.undropped.discard(replica)
        self._look_whether_all()
        self._set(self.replicas - {replica})
        await self._changes.drop(replica)

    patch.setattr(RequiredFollowers, "drop", drop)


def no_epoch_check(patch: Patch) -> None:
    patch.setattr(_Following, "_check_epoch", nothing)
    refusal = LeaderLinks._refusal

    def unfenced(self: LeaderLinks, follow: Any) -> Any:
        found = refusal(self, follow)
        return None if found is not None and found.code == "FENCED" else found

    patch.setattr(LeaderLinks, "_refusal", unfenced)
    patch.setattr(Term, "fenced", nothing)


def forget_isr(patch: Patch) -> None:
    real = RequiredFollowers.__init__

    def alone(self: RequiredFollowers, tickets: Tickets, changes: Any, replicas: Iterable[str]) -> None:
        real(self, tickets, changes, ())

    patch.setattr(RequiredFollowers, "__init__", alone)


def wipe_in_isr(patch: Patch) -> None:
    real = LeaderLink._join

    async def join(self: LeaderLink) -> None:
        required = self._term.required
        required._set(required.replicas - {self.replica})
        required.undropped.discard(self.replica)
        required._look_whether_all()
        await real(self)

    patch.setattr(LeaderLink, "_join", join)


def expand_on_beat(patch: Patch) -> None:
    patch.setattr(FollowerSink, "is_due_through", lambda self, seq: False)


def expand_count_late(patch: Patch) -> None:
    real = Term.add

    async def add(self: Term, replica: str) -> None:
        await real(self, replica)
        required = self.links._required
        required._set(required.replicas | {replica})

    patch.setattr(Term, "add", add)
    patch.setattr(RequiredFollowers, "add", nothing)


def expand_early(patch: Patch) -> None:
    async def wait_until(self: LeaderLink, is_so: Callable[[], bool]) -> None:
        """Do not wait."""

    patch.setattr(LeaderLink, "_wait_until", wait_until)


def no_truncate(patch: Patch) -> None:
    def carry_out(fs: Any, root: str, plan: JoinPlan, known: Any, place: str, *_: object) -> Moved:
        for directory in sorted(plan.directories):
            fs.mkdir(f"{root}/{directory}")
        return Moved(place)

    patch.setattr(follower_stream, "carry_out", carry_out)


def _answered(patch: Patch, without_answer: Callable[[InSyncSet, tuple[str, ...]], bool]) -> None:
    """Change what T3 concludes from a transaction whose answer does not come."""

    async def put(self: InSyncSet, value: tuple[str, ...]) -> None:
        while True:
            try:
                outcome = await self._agreement.change_in_sync(self._epoch, self._revision, value)
                if outcome.done:
                    self._settle(value, outcome.revision)
                    return
                if await self._read():
                    return
            except EtcdError:
                if without_answer(self, value):
                    return
            await asyncio.sleep(0.1)

    patch.setattr(InSyncSet, "_put", put)


def timeout_is_no(patch: Patch) -> None:
    _answered(patch, lambda self, value: False)


def timeout_is_yes(patch: Patch) -> None:
    def settle(self: InSyncSet, value: tuple[str, ...]) -> bool:
        self._settle(value, self._revision)
        return True

    _answered(patch, settle)


def read_settles(patch: Patch) -> None:
    async def put(self: InSyncSet, value: tuple[str, ...]) -> None:
        while True:
            self._sent[value] = None
            try:
                outcome = await self._agreement.change_in_sync(self._epoch, self._revision, value)
                if outcome.done:
                    self._settle(value, outcome.revision)
                    return
            except EtcdError:
                pass
            try:
                if await self._read():
                    return
                self._sent.clear()
            except EtcdError:
                pass
            if value == self._members:
                return
            await asyncio.sleep(0.1)

    patch.setattr(InSyncSet, "_put", put)


def join_unsettled(patch: Patch) -> None:
    patch.setattr(InSyncSet, "may_hold", property(lambda self: frozenset(self._members)))


def promise_unsynced(patch: Patch) -> None:
    _forgetful(patch, "promised")


def marker_missing(patch: Patch) -> None:
    _forgetful(patch, "copying")


def _forgetful(patch: Patch, field: str) -> None:
    real = ReplicaFile.change

    def change(self: ReplicaFile, **fields: Any) -> Any:
        return real(self, **{name: value for name, value in fields.items() if name != field})

    patch.setattr(ReplicaFile, "change", change)


def join_unnamed(patch: Patch) -> None:
    def check(self: _Following, epoch: int) -> None:
        self._epoch = epoch

    patch.setattr(_Following, "_check_epoch", check)


def rename_by_name(patch: Patch) -> None:
    def put_rename(self: Stream, path: str, to: str) -> bool:
        self.put(Rename, path, to)
        return True

    patch.setattr(Stream, "put_rename", put_rename)


def no_spool(patch: Patch) -> None:
    real = follower_stream.FollowerStream._put

    def put(self: follower_stream.FollowerStream, frames: list[bytes]) -> None:
        if self.phase not in (follower_stream.Phase.COMPARING, follower_stream.Phase.COPYING):
            real(self, frames)
            return
        reader = OperationReader()
        reader.receive(b"".join(frames))
        frames.clear()
        self._files.redo(iter(reader.next_operation, None))

    patch.setattr(follower_stream.FollowerStream, "_put", put)


def serves_undropped(patch: Patch) -> None:
    """Leave out the rule that a new leader waits until each member that has connected and does not follow is dropped (ADR 0097,
    11)."""

    async def all_dropped(self: RequiredFollowers) -> None:
        """Do not wait."""

    patch.setattr(RequiredFollowers, "all_dropped", all_dropped)


def cache_trusted(patch: Patch) -> None:
    """Leave out the rule that a joining copy writes again what a failed sync may have left only in the cache (ADR 0002,
    0118)."""
    patch.setattr(follower_stream, "may_be_cached_only", lambda manifest, any_file: {})


def ack_before_replay(patch: Patch) -> None:
    patch.setattr(ReplicaFiles, "redo", lambda self, operations: [None for _ in operations] and None)


def copied_unsynced(patch: Patch) -> None:
    patch.setattr(ReplicaFiles, "sync_all", nothing)


def unsynced_forgotten(patch: Patch) -> None:
    """Leave out the rule that a copy that joins again syncs what it had not synced (ADR 0276)."""
    patch.setattr(ReplicaFiles, "sync_unsynced", nothing)


def prefix_by_size(patch: Patch) -> None:
    def compared(entry: Any, digests: Any, stop: Any) -> FilePlan:
        length = digests.fs.file_size(f"{digests.root}/{entry.path}")
        if length < entry.size or (length != entry.size and not has_records(entry.path)):
            return FilePlan(entry.path, Action.COPY)
        if has_records(entry.path):
            return FilePlan(entry.path, Action.APPEND, entry.size)
        return FilePlan(entry.path, Action.KEEP)

    patch.setattr(manifest, "_compared", compared)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mutant. ``seed``: of a world that finds it."""

    leave_out: Callable[[Patch], None]
    seed: int

    @property
    def name(self) -> str:
        return self.leave_out.__name__


FOUND = [
    Mutant(ack_before_sync, 0), Mutant(copied_unsynced, 0), Mutant(promise_unsynced, 0), Mutant(ack_before_replay, 0),
    Mutant(prefix_by_size, 0), Mutant(ack_local, 2), Mutant(shrink_unfenced, 2), Mutant(unsynced_forgotten, 4),
    Mutant(expand_on_beat, 7), Mutant(expand_early, 7), Mutant(forget_isr, 9), Mutant(no_truncate, 10), Mutant(no_spool, 10),
    Mutant(shrink_after_ack, 11), Mutant(unclean, 14), Mutant(rename_by_name, 26), Mutant(expand_count_late, 34),
    Mutant(epoch_reused, 55), Mutant(read_settles, 68), Mutant(timeout_is_no, 68), Mutant(join_unsettled, 68),
    Mutant(cache_trusted, 91), Mutant(timeout_is_yes, 125), Mutant(wipe_in_isr, 141),
    Mutant(stale_isr, 240), Mutant(no_epoch_check, 678), Mutant(serves_undropped, 8292),
]  # fmt: skip
"""Those found soonest come first."""

NOT_SHOWN = {
    "truncate_hw": "the code remembers no position that it could cut to: files are compared by content",
    "same_identity": "the identity is made with a directory, and no world loses a disk",
    "join_in_isr": "the same line of the code as wipe_in_isr",
    "no_aside_cut": "the same function as no_truncate",
    "join_unnamed": "a process ends with its term, so a leader that was read leads that epoch when it is reached, or a "
    "later one, whose promise is as good; the rule is for a copy that was forced, and no operator forces in a world",
    "lease_kept": "a transaction of an earlier life is found by the next read, and its lease revoked (T5); T6 is an operator's",
    "force_while_led": "no operator forces in a world: tests/unit/replication/test_node.py",
    "force_from_outside": "no operator forces in a world: tests/unit/replication/test_node.py",
    "marker_missing": "a copy that joins is outside of the in-sync set, which T2 compares; the mark is for T6, of an operator",
    "t1_adopts": "a copy that has promised an epoch refuses an etcd without an in-sync set, too, and all have",
    "t2_assumed": "a node leads by what it reads, and by no answer: no single place of the code",
    "bye_unsettled": "tickets stop before BYE: what is not settled then never gets OK",
    "answers_after_bye": "tickets stop before BYE, and followers that have read it acknowledge nothing more",
    "s0_after_plan": "operations are numbered, and STREAM says the number before the first: a follower refuses a gap",
    "old_spool": "a spool is read up to what was put by this join, from its beginning",
    "suffix_cut": "what is lost was never acknowledged: tests/unit/replication/test_put_aside.py",
    "aside_unsynced": "what is lost was never acknowledged: tests/unit/replication/test_put_aside.py",
    "aside_overwrites": "what is lost was never acknowledged: tests/unit/replication/test_put_aside.py",
    "copy_too_early": "a job of a simulated disk runs whole, so no write is under way when a follower is attached: "
    "tests/fault/test_replica_histories.py runs the two in pieces",
}
"""Why no world shows the harm. The last one is ADR 0098's."""

RULES = {mutant.name: mutant.leave_out for mutant in FOUND}
"""Each rule that can be left out, by its name."""
