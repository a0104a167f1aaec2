"""The route of a WebSocket: the handshake, the check of rights, and the end. Contract: gateway.md; docs/http.md."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from starlette.responses import Response
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from toymq_py.errors import RequestError
from toymq_py.gateway.access import check_rights, check_site, refused
from toymq_py.gateway.problems import problem
from toymq_py.gateway.request_context import Gateway
from toymq_py.gateway.websocket_end import leave


class Dialogue(Protocol):
    """The application's side of one open WebSocket."""

    async def run(self) -> None:
        """Serve until either side closes."""

    def end(self) -> None:
        """End the dialogue's subscriptions. Idempotent."""

    async def wait_answered(self) -> None:
        """Wait until the frames that have begun are answered."""


def websocket_route(
    gateway: Gateway,
    path: str,
    action: str,
    begin: Callable[[WebSocket], Callable[[asyncio.TaskGroup], Dialogue]],
    *,
    identify: Callable[[WebSocket], WebSocket] = lambda socket: socket,
    refuse: Callable[[RequestError], Response] = problem,
) -> WebSocketRoute:
    """The route of a WebSocket.

    Args:
        action: the name of the handshake in the audit trail.
        begin: checks the request, after the rights, and returns a function that makes the dialogue. Raises: RequestError.
        identify: moves a token to where ``check_rights`` looks for it.
        refuse: makes the answer to a refused handshake.
    """

    async def converse(socket: WebSocket) -> None:
        socket = identify(socket)
        try:
            check_site(gateway, socket, safe=False)
            check_rights(gateway, socket, "see")
            make = begin(socket)
            gateway.refuse_late()
        except RequestError as error:
            refused(gateway, socket, action, error)
            await socket.send_denial_response(refuse(error))
            return
        await socket.accept()
        with suppress(asyncio.CancelledError):
            async with asyncio.TaskGroup() as tasks:
                dialogue = make(tasks)
                leaving = tasks.create_task(leave(gateway, socket, action, dialogue.end, dialogue.wait_answered))
                await dialogue.run()
                leaving.cancel()

    return WebSocketRoute(path, endpoint=converse)
