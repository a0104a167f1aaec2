"""A topic moves back and forth while etcd loses requests and answers, and leaders die: one group has it, with all that was
acknowledged, its ids, its acks, and each dead letter once."""

import asyncio
import random
from collections.abc import Iterable
from functools import partial

import pytest

from tests.support.elections import until_answered
from tests.support.move_world import GROUPS, TOPIC, World, asked, moved, simulate
from tests.support.shares import seeds
from tests.support.simulated_etcd import Loss
from toymq_py.cluster.held_topics import HeldTopics
from toymq_py.replication.key_values import Transaction


async def troubled(world: World, rng: random.Random) -> None:
    loop, etcd, kept = world.loop, world.etcd, world.kept("tool")
    clients, consuming = await world.begin()

    async def nemesis() -> None:
        while True:
            await asyncio.sleep(rng.choice((0.02, 0.1, 0.5)))
            name = rng.choice(GROUPS)
            life = world.groups[name].life
            assert life is not None
            node = f"{name}{life.number}"
            harm = rng.choice(("lose", "lose", "lose", "cut", "kill", "disk", "lag", "away", "hang up"))
            if harm == "lose":
                etcd.lose(node, *(rng.choice(list(Loss)) for _ in range(2)))
            elif harm == "cut":
                etcd.cut_off(node)
                loop.call_later(rng.uniform(0, 1), etcd.reconnect, node)
            elif harm == "kill":
                life.die()
            elif harm == "disk":
                life.kills_in = rng.randrange(60)
            elif harm == "lag":
                etcd.watch_lag_s = rng.choice((0.0, 0.1, 1.0))
            elif harm == "away":
                etcd.away = not etcd.away
                loop.call_later(rng.uniform(0, 1), setattr, etcd, "away", False)
            else:
                for pipe in life.pipes:
                    pipe.abort()

    harming = loop.create_task(nemesis())
    to = "a"
    for _ in range(6):
        to = rng.choice(GROUPS)
        await asked(world, kept, to)
        await asyncio.sleep(rng.choice((0.05, 0.3, 2.0)))
    harming.cancel()
    etcd.be_well()
    for group in world.groups.values():
        if group.life is not None:
            group.life.kills_in = None
    await asyncio.sleep(1.0)
    while await until_answered(partial(kept.move, TOPIC)) is not None:  # noqa: ASYNC110 (of other tasks)
        await asyncio.sleep(0.1)
    await asked(world, kept, to)
    await moved(world, kept, to)
    consuming.cancel()
    world.publishing = False
    await asyncio.gather(*clients)
    await world.check(to)


def trouble(seed: int) -> None:
    simulate(lambda world: troubled(world, random.Random(seed)), seed)


@pytest.mark.parametrize("seed", seeds(3, 400))
def test_a_topic_is_in_one_group_with_all_that_it_had(seed: int) -> None:
    trouble(seed)


STEPS = 5
"""More than the transactions of one leader in a move."""


@pytest.mark.parametrize("harm", [*Loss, "it dies before", "it dies behind"])
@pytest.mark.parametrize("group", GROUPS)
def test_each_transaction_of_a_move_is_lost_or_the_last_of_its_leader(group: str, harm: Loss | str) -> None:
    """``harm`` hits each transaction of the group that has the topic, or of the group that gets it."""
    for nth in range(STEPS):
        simulate(lambda world, nth=nth: _with_harm(world, group, nth, harm), nth)  # type: ignore[misc]


async def _with_harm(world: World, group: str, nth: int, harm: Loss | str) -> None:
    etcd, kept = world.etcd, world.kept("tool")
    clients, consuming = await world.begin()
    record = await kept.record(TOPIC)
    assert record is not None
    to = "b" if record.group == "a" else "a"
    left = nth

    def on_transaction(client: str, transaction: Transaction, done: bool) -> None:
        nonlocal left
        life = world.groups[group].life
        assert life is not None
        if client != f"{group}{life.number}" or done != (harm == "it dies behind"):
            return
        left -= 1
        if left == -1 and isinstance(harm, Loss):
            etcd.lose(client, harm)
        elif left == -1:
            life.die()

    await asked(world, kept, to)
    etcd.on_transaction = on_transaction
    await moved(world, kept, to)
    etcd.on_transaction = lambda client, transaction, done: None
    consuming.cancel()
    world.publishing = False
    await asyncio.gather(*clients)
    await world.check(to)


def _some_seed_finds(numbers: Iterable[int]) -> None:
    for seed in numbers:
        try:
            trouble(seed)
        except (AssertionError, TimeoutError, RuntimeError):
            return
    raise AssertionError("no seed has found it")


@pytest.mark.torture
def test_a_copy_that_is_removed_before_the_attempt_is_over_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above must fail without this rule: unless the attempt gets a new number in etcd, the other leader may still
    give the topic to a copy that was removed."""

    async def take(self: HeldTopics, topic: str, attempt: int) -> bool:
        record = await until_answered(partial(self._kept.record, topic))
        if record is not None:
            self._books.learn(topic, record)
        return record is not None and record.group == self._books.group

    monkeypatch.setattr(HeldTopics, "take", take)
    _some_seed_finds(range(400))


@pytest.mark.torture
def test_a_copy_without_a_mark_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toymq_py.topic_moves.TopicMoves.mark", lambda self, origin, mark, done: done(None))
    _some_seed_finds(range(400))
