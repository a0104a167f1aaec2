"""The end of a WebSocket: the order of its steps, and its close code."""

import asyncio

import pytest

from toymq_py.gateway import websocket_end
from toymq_py.gateway.waiters import Waiting
from toymq_py.gateway.websocket_end import leave


class Socket:
    """Records the calls, in order."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self.waiting = Waiting(asyncio.get_running_loop())

    async def close(self, code: int, reason: str | None = None) -> None:
        self.events.append(code)

    async def answered(self) -> None:
        await asyncio.sleep(0)
        self.events.append("answered")

    async def leave(self) -> None:
        await leave(self, self, "websocket", lambda: self.events.append("ended"), self.answered)  # type: ignore[arg-type]  # as needed


@pytest.mark.parametrize(("revoked", "expected"), [(False, ["ended", "answered", 1001]), (True, ["ended", 1008])])
async def test_what_was_begun_is_answered_before_a_shutdown_and_a_revoked_token_ends_at_once(
    monkeypatch: pytest.MonkeyPatch, revoked: bool, expected: list[object]
) -> None:
    monkeypatch.setattr(websocket_end, "may_go_on", lambda *_: not revoked)
    socket = Socket()
    leaving = asyncio.ensure_future(socket.leave())
    await asyncio.sleep(0)
    assert socket.events == []
    if revoked:
        socket.waiting.wake()
    else:
        socket.waiting.stop()
    await leaving
    assert socket.events == expected
