"""Connections for requests that wait, kept for reuse between them; in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random

import pytest

from tests.support.sim_event_loop import SimEventLoop
from toymq.spare_links import SPARE_KEPT, SPARE_S, SpareLinks
from toymq.url import Address

THERE = Address("there", 1)


@dataclass(eq=False)
class Link:
    number: int = 0
    home: Address | None = None


@dataclass
class Spare:
    closed: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.links: SpareLinks[Link] = SpareLinks(lambda link: self.closed.append(link.number))


def run(test: Callable[[Spare], Awaitable[None]]) -> Spare:
    """Run the test in virtual time: a sleep moves the clock."""
    spare = Spare()

    async def main() -> None:
        await test(spare)

    with asyncio.Runner(loop_factory=lambda: SimEventLoop(Random(1))) as runner:
        runner.run(main())
    return spare


def test_those_that_none_takes_are_closed_after_their_time_but_for_a_few() -> None:
    async def test(spare: Spare) -> None:
        for number in range(300):
            spare.links.add(Link(number))
        await asyncio.sleep(SPARE_S - 0.01)
        assert spare.closed == []
        await asyncio.sleep(0.02)
        assert spare.closed == list(range(300 - SPARE_KEPT))
        await asyncio.sleep(100 * SPARE_S)
        assert [spare.links.take(None) is not None for _ in range(SPARE_KEPT + 1)] == [*[True] * SPARE_KEPT, False]

    assert len(run(test).closed) == 300 - SPARE_KEPT


def test_a_loop_that_polls_takes_the_same_ones_and_the_others_grow_old() -> None:
    async def test(spare: Spare) -> None:
        for number in range(20):
            spare.links.add(Link(number))
        for _ in range(30):
            await asyncio.sleep(SPARE_S / 10)
            taken = [spare.links.take(None) for _ in range(2)]
            assert [link.number for link in taken if link is not None] in ([19, 18], [18, 19])
            for link in taken:
                assert link is not None
                spare.links.add(link)

    assert run(test).closed == list(range(20 - SPARE_KEPT)), "those that were not taken, the oldest first"


def test_each_has_a_time_of_its_own() -> None:
    async def test(spare: Spare) -> None:
        for number in range(SPARE_KEPT + 3):
            spare.links.add(Link(number))
            await asyncio.sleep(1)
        await asyncio.sleep(SPARE_S - SPARE_KEPT - 3 + 0.5)
        assert spare.closed == [0]
        await asyncio.sleep(1)
        assert spare.closed == [0, 1]

    assert run(test).closed == [0, 1]


def test_one_to_another_worker_is_not_taken() -> None:
    async def test(spare: Spare) -> None:
        spare.links.add(Link(1, THERE))
        spare.links.add(Link(2))
        assert spare.links.take(Address("elsewhere", 1)) is None
        found = spare.links.take(THERE)
        assert found is not None
        assert found.number == 1
        assert spare.links.take(THERE) is None

    run(test)


@pytest.mark.parametrize("count", [1, 300])
def test_none_is_closed_behind_the_client(count: int) -> None:
    async def test(spare: Spare) -> None:
        for number in range(count):
            spare.links.add(Link(number))
        spare.links.stop()
        spare.links.stop()
        await asyncio.sleep(2 * SPARE_S)

    assert run(test).closed == []
