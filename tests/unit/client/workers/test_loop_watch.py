"""A coroutine that blocks the event loop is reported."""

import asyncio
import logging

import pytest

from toymq.workers.loop_watch import HELD_S, LoopWatch


async def test_a_loop_that_was_held_is_told_with_its_functions(caplog: pytest.LogCaptureFixture) -> None:
    watch = LoopWatch(["shop.pay", "shop.send"])
    now = asyncio.get_running_loop().time()
    watch.look(now - HELD_S / 2)
    assert caplog.text == ""
    watch.look(now - HELD_S - 2)
    assert "the event loop was held for 7 s: a call in shop.pay or shop.send blocks" in caplog.text
    watch.stop()


async def test_threads_hold_no_loop(caplog: pytest.LogCaptureFixture) -> None:
    watch = LoopWatch([])
    watch.look(asyncio.get_running_loop().time() - 2 * HELD_S)
    watch.stop()
    assert caplog.record_tuples == []


async def test_it_looks_again_and_again_until_it_is_stopped(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        watch = LoopWatch(["shop.pay"])
        watch.start()
        first = watch._timer
        watch.look(asyncio.get_running_loop().time())
        assert watch._timer is not first
        watch.stop()
        watch.stop()
        assert watch._timer is None
