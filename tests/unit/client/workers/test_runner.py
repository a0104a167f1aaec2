"""The end of a job and the end of its event loop. The rest is shown with a broker: ``e2e/workers/test_runner.py``."""

import asyncio
from random import Random
from typing import Any

import pytest

from toymq import App, Message
from toymq.delivery_window import Feed
from toymq.workers.runner import Runner
from toymq_py.protocol import MessagePush, Subscribe


def runner_of(function: Any) -> tuple[Runner, Message]:
    runner = Runner(App().worker("t")(function), None, Random())  # type: ignore[arg-type]
    message = Message(MessagePush("t", 1, 1, 5, b"", b"", b""), Feed(Subscribe("t", "c"), print), None)  # type: ignore[arg-type]
    return runner, message


async def test_a_coroutine_that_raises_generator_exit_fails() -> None:
    async def work() -> None:
        raise GeneratorExit("over")

    runner, message = runner_of(work)
    task = asyncio.current_task()
    assert task is not None
    runner._running[message] = task, 0.0
    with pytest.raises(RuntimeError, match="over"):
        await runner._call(message)


async def test_a_job_that_is_closed_with_its_loop_does_not_go_on() -> None:
    """Python warns "coroutine ignored GeneratorExit" of a job that goes on."""

    async def work() -> None:
        await asyncio.get_running_loop().create_future()

    runner, message = runner_of(work)
    runner._running[message] = asyncio.get_running_loop().create_task(asyncio.sleep(0)), 0.0  # not the one that closes it
    job = runner._call(message)
    job.send(None)
    job.close()
