"""The transactions of replication: T1 to T4 and T6 of the contract (replication.md, section 3; ADR 0097), over etcd's keys.

T5 is not a transaction: a node whose earlier process is still the leader revokes that lease and is elected anew.
"""

from collections.abc import Sequence

from toymq_py.replication import group_keys
from toymq_py.replication.agreement import (
    Answer,
    ClusterSettings,
    GroupState,
    HandOver,
    Member,
    Outcome,
    ReplicaId,
    Request,
    Seat,
)
from toymq_py.replication.group_keys import GroupKeys
from toymq_py.replication.key_values import Check, Compare, Delete, KeyValues, Put, Transaction


class KeptAgreement:
    """Implements ``Agreement`` with the keys of one group."""

    def __init__(self, store: KeyValues, cluster: str, group: str) -> None:
        """Raises: ConfigError on an invalid name."""
        self._store = store
        self._keys = GroupKeys(cluster, group)
        self._settings_revision = 0  # of those that were read last

    async def settings(self) -> ClusterSettings | None:
        """The settings that the cluster was initialised with; None before that. Later calls are limited by their TTL."""
        found = await self._store.get(self._keys.settings)
        settings = self._keys.decode_settings(found)
        self._settings_revision = max((each.changed for each in found.keys), default=0)
        if settings is not None:
            self._store.bound(settings.ttl_s)
        return settings

    async def create_settings(self, settings: ClusterSettings) -> Outcome:
        config = self._keys.config
        return await self._commit([Compare(config, Check.ABSENT)], Put(config, group_keys.encode_settings(settings)))

    async def adopt(self, settings: ClusterSettings) -> Outcome:
        keys = self._keys
        return await self._commit(
            [Compare(keys.config, Check.CHANGED_AT, self._settings_revision), Compare(keys.leader, Check.ABSENT)],
            Put(keys.config, group_keys.encode_settings(settings)),
            *(Delete(key) for key in (keys.in_sync, keys.hand_over, keys.request, keys.answer)),
        )

    async def read(self) -> GroupState:
        return self._keys.decode_state(await self._store.get(self._keys.state))

    async def grant(self, ttl_s: float) -> int:
        return await self._store.grant(ttl_s)

    async def renew(self, lease: int) -> None:
        await self._store.renew(lease)

    async def revoke(self, lease: int) -> None:
        await self._store.revoke(lease)

    # -- transactions

    async def begin(self, me: Member, lease: int) -> Outcome:
        """Try T1: lead a group without an in-sync set. The new set has epoch 0, as the leader's is known only after the
        transaction."""
        keys = self._keys
        compares = [
            Compare(keys.in_sync, Check.ABSENT),
            Compare(keys.leader, Check.ABSENT),
            # With a wiped etcd an empty cluster would begin under an old epoch; after ``adopt`` another copy may begin it.
            Compare(keys.config, Check.CHANGED_AT, self._settings_revision)
            if self._settings_revision
            else Compare(keys.config, Check.PRESENT),
        ]
        return await self._commit(compares, self._alone(me), self._lead(me, lease))

    async def elect(self, me: Member, lease: int, in_sync_revision: int) -> Outcome:
        """Try T2: lead as a member of the in-sync set."""
        return await self._commit(self._no_leader_and(in_sync_revision), self._lead(me, lease))

    async def change_in_sync(self, epoch: int, in_sync_revision: int, members: Sequence[ReplicaId]) -> Outcome:
        """Try T3: replace the in-sync set."""
        keys = self._keys
        compares = [
            Compare(keys.leader, Check.CREATED_AT, epoch),
            Compare(keys.in_sync, Check.CHANGED_AT, in_sync_revision),
        ]
        return await self._commit(compares, Put(keys.in_sync, group_keys.encode_in_sync(members, epoch)))

    async def hand_over(self, epoch: int, to: ReplicaId, lease: int) -> Outcome:
        """Try T4: give up leading in favour of ``to``."""
        keys = self._keys
        value = group_keys.encode_hand_over(HandOver(to, epoch))
        return await self._commit(
            [Compare(keys.leader, Check.CREATED_AT, epoch)], Put(keys.hand_over, value, lease), Delete(keys.leader)
        )

    async def force(self, me: Member, lease: int, in_sync_revision: int) -> Outcome:
        """Try T6: lead as the only member of the in-sync set, at an operator's request."""
        return await self._commit(self._no_leader_and(in_sync_revision), self._alone(me), self._lead(me, lease))

    # -- operators

    async def ask(self, request: Request, lease: int) -> Outcome:
        key = self._keys.request
        return await self._commit([Compare(key, Check.ABSENT)], Put(key, group_keys.encode_request(request), lease))

    async def answer(self, answer: Answer) -> Outcome:
        keys = self._keys
        return await self._commit(
            [Compare(keys.request, Check.CHANGED_AT, answer.request)],
            Delete(keys.request),
            Put(keys.answer, group_keys.encode_answer(answer)),
        )

    # -- seats

    async def put_seat(self, seat: Seat, lease: int) -> None:
        replica = seat.member.replica
        value = group_keys.encode_seat(seat)
        await self._commit([], Put(self._keys.seat(replica), value, lease), Put(self._keys.seen(replica), value))

    async def forget_seat(self, replica: ReplicaId) -> None:
        await self._commit([], Delete(self._keys.seat(replica)), Delete(self._keys.seen(replica)))

    async def seats(self) -> list[Seat]:
        return self._keys.decode_seats(await self._store.get(self._keys.seats))

    # -- the watch

    async def changed(self, since: int) -> None:
        await self._store.changed(self._keys.state, since)

    async def close(self) -> None:
        await self._store.close()

    # -- parts

    def _no_leader_and(self, in_sync_revision: int) -> list[Compare]:
        return [
            Compare(self._keys.leader, Check.ABSENT),
            Compare(self._keys.in_sync, Check.CHANGED_AT, in_sync_revision),
        ]

    def _lead(self, me: Member, lease: int) -> Put:
        return Put(self._keys.leader, group_keys.encode_member(me), lease)

    def _alone(self, me: Member) -> Put:
        return Put(self._keys.in_sync, group_keys.encode_in_sync([me.replica], 0))

    async def _commit(self, compares: Sequence[Compare], *changes: Put | Delete) -> Outcome:
        return await self._store.commit(Transaction(compares, changes))
