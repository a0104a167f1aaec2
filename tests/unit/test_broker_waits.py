"""Coroutines that wait for the broker."""

import asyncio
import errno

import pytest

from toymq_py.broker import Done
from toymq_py.broker_waits import made, stored
from toymq_py.errors import BeingDeleted, DiskFull, QueueFull


@pytest.mark.parametrize(
    ("error", "raised"), [(None, None), (QueueFull("x"), QueueFull), (OSError(errno.ENOSPC, "full"), DiskFull)]
)
async def test_stored_raises_what_the_client_hears(error: OSError | QueueFull | None, raised: type[Exception] | None) -> None:
    def begin(done: Done) -> None:
        done(error)
        done(None)  # a second call changes nothing

    if raised is None:
        await stored(begin)
    else:
        with pytest.raises(raised):
            await stored(begin)


async def test_what_makes_a_topic_is_called_again_when_its_name_is_free() -> None:
    freed: list[Done] = []
    calls = 0

    def make() -> str:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise BeingDeleted("t", lambda call: freed.append(lambda _: call()))
        return "made"

    making = asyncio.ensure_future(made(make))
    await asyncio.sleep(0)
    assert not making.done()
    freed[0](None)
    assert await making == "made"
