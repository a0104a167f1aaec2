"""Time slices: work yields to the loop when its slice is used up, and not before."""

import asyncio

from tests.support.fake_clock import FakeClock
from toymq_py.observability.slices import SLICE_S, Slices


async def test_others_run_when_the_slice_is_over() -> None:
    clock, ran = FakeClock(), []
    slices = Slices(clock)
    asyncio.get_running_loop().call_soon(ran.append, 1)
    await slices.turn()
    assert ran == [], "the slice has just begun"
    clock.advance(SLICE_S)
    await slices.turn()
    assert ran == [1]
    asyncio.get_running_loop().call_soon(ran.append, 2)
    await slices.turn()
    assert ran == [1], "a new slice"
