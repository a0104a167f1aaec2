"""What makes a topic waits until the one of that name is gone, and begins again."""

import asyncio
from collections.abc import Callable

from toymq_py.broker import Done
from toymq_py.broker_waits import made, stored
from toymq_py.errors import BeingDeleted


class Deletion:
    """A topic that is being deleted: the first call finds it, the next one does not."""

    def __init__(self) -> None:
        self.calls = 0
        self.over: Callable[[], None] | None = None

    def __call__(self, done: Done | None = None) -> str:
        self.calls += 1
        if self.calls == 1:
            raise BeingDeleted("t is being deleted", self._when_done)
        if done is not None:
            done(None)
        return "made"

    def _when_done(self, call: Callable[[], None]) -> None:
        self.over = call


async def test_both_begin_again_when_the_deletion_is_over() -> None:
    for wait in (made, stored):
        deletion = Deletion()
        task = asyncio.ensure_future(wait(deletion))  # type: ignore[operator]
        await asyncio.sleep(0)
        assert (task.done(), deletion.calls) == (False, 1), wait
        assert deletion.over is not None
        deletion.over()
        assert await task == ("made" if wait is made else None), wait
        assert deletion.calls == 2, wait
