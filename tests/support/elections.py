"""Elects leaders of groups on a simulated etcd, without nodes: each replaces the one before at once."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from tests.support.simulated_etcd import SimulatedEtcd
from toymq_py.errors import EtcdError
from toymq_py.replication.agreement import ClusterSettings, Member

T = TypeVar("T")

CLUSTER = "c"
SETTINGS = ClusterSettings("u", 1, 1)


async def elect(etcd: SimulatedEtcd, group: str, life: int) -> tuple[Member, int]:
    """Make the ``life``-th leader of a group lead; its address is ``<group><life>:2``. Returns: the leader, and its lease."""
    node = f"{group}{life}"
    agreement = etcd.agreement(node, CLUSTER, group)
    member = Member(f"{life:032x}", node, f"{node}:1", f"{node}:2", f"{node}:3", "")
    lease = await until_answered(partial(agreement.grant, 600))
    await until_answered(partial(agreement.create_settings, SETTINGS))
    await until_answered(agreement.settings)
    while True:
        state = await until_answered(agreement.read)
        if state.leader is not None and state.leader.member == member:
            return member, lease
        if state.leader is not None:
            await until_answered(partial(agreement.revoke, state.leader.lease))
        elif state.in_sync is None:
            await _tried(agreement.begin(member, lease))
        else:
            await _tried(agreement.force(member, lease, state.in_sync.revision))


async def until_answered(call: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            return await call()
        except EtcdError:
            await asyncio.sleep(0.05)


async def _tried(transaction: Awaitable[object]) -> None:
    with suppress(EtcdError):
        await transaction
