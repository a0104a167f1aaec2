"""Ends a WebSocket when the broker shuts down, or when its token is revoked. Contract: gateway.md; docs/http.md."""

from collections.abc import Awaitable, Callable
from contextlib import suppress

from starlette.websockets import WebSocket, WebSocketDisconnect

from toymq_py.gateway.access import may_go_on
from toymq_py.gateway.request_context import Gateway

GOING_AWAY = 1001
"""The broker shuts down (RFC 6455, 7.4.1). Not 1012: it does not know whether it starts again."""
UNSUPPORTED = 1003
POLICY = 1008
LOOK_S = 60.0
"""How often a WebSocket checks that its token or login is still valid."""


async def leave(
    gateway: Gateway, socket: WebSocket, action: str, end: Callable[[], None], answered: Callable[[], Awaitable[None]]
) -> None:
    """Close the WebSocket when the broker shuts down, after the answers to frames in progress, or when the token is revoked.

    Args:
        action: the name of the handshake in the audit trail.
        end: ends the subscriptions; called first, since the close waits behind unsent messages.
        answered: waits until the frames that were begun are answered.
    """
    while not gateway.waiting.stopped:
        await gateway.waiting.sleep(LOOK_S)
        if not may_go_on(gateway, socket, action, "see", ""):
            end()
            await _close(socket, POLICY)
            return
    end()
    await answered()
    await _close(socket, GOING_AWAY)


async def refuse_bytes(socket: WebSocket) -> None:
    """Close a WebSocket because a binary frame came, after the answers to the text frames before it."""
    await _close(socket, UNSUPPORTED, "send text frames")


async def _close(socket: WebSocket, code: int, reason: str | None = None) -> None:
    with suppress(WebSocketDisconnect, RuntimeError):  # it ended meanwhile
        await socket.close(code, reason)
