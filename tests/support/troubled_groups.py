"""What happens to groups of simulated nodes: their etcd fails, and their leaders change."""

import asyncio
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Protocol

from tests.support.simulated_etcd import Loss, SimulatedEtcd
from toymq_py.errors import TermEnded


class TroubledGroup(Protocol):
    """A group of a world. ``life`` is the number of its leader's present process."""

    name: str
    life: int

    async def lead(self) -> None:
        """Elect a leader, in a new process. Raises: TermEnded."""


async def trouble_groups(
    groups: Mapping[str, TroubledGroup], etcd: SimulatedEtcd, rng: random.Random, harms: Sequence[str], count: int
) -> None:
    """Do ``count`` of the harms, drawn at random, with pauses between them: "lose" answers of etcd, "cut" a node off, "lead"
    with another leader, let etcd's watches "lag", or etcd be "away"."""
    for _ in range(count):
        await asyncio.sleep(rng.choice((0.01, 0.1, 0.5)))
        group = groups[rng.choice(sorted(groups))]
        node = f"{group.name}{group.life}"
        harm = rng.choice(harms)
        if harm == "lose":
            etcd.lose(node, *(rng.choice(list(Loss)) for _ in range(3)))
        elif harm == "cut":
            etcd.cut_off(node)
            asyncio.get_running_loop().call_later(rng.uniform(0, 2), etcd.reconnect, node)
        elif harm == "lead":
            etcd.away = False
            with suppress(TermEnded):
                await group.lead()
        elif harm == "lag":
            etcd.watch_lag_s = rng.choice((0.0, 0.1, 1.0))
        else:
            etcd.away = not etcd.away


async def settle(groups: Mapping[str, TroubledGroup], etcd: SimulatedEtcd) -> None:
    """End all harm, and let each group have a leader again."""
    etcd.be_well()
    await asyncio.sleep(20.0)
    for group in groups.values():
        await group.lead()
    await asyncio.sleep(5.0)
