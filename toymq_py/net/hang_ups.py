"""Finds connections that their clients have closed. One that is not read does not report it: the bytes ahead of the end stay in
its socket."""

import asyncio
import select
from collections.abc import Mapping
from typing import TypeVar

K = TypeVar("K")
HUNG_UP: int = getattr(select, "POLLRDHUP", select.POLLHUP)
"""Linux reports half-closed connections, too."""


def hung_up(transports: Mapping[K, asyncio.Transport]) -> list[K]:
    """The keys of the transports whose clients have closed the connection, or their half of it. One call of the system."""
    sockets = {key: transport.get_extra_info("socket") for key, transport in transports.items()}
    by_fd = {socket.fileno(): key for key, socket in sockets.items() if socket is not None}
    by_fd.pop(-1, None)  # those that are closed
    poller = select.poll()
    for fd in by_fd:
        poller.register(fd, HUNG_UP)
    return [by_fd[fd] for fd, _ in poller.poll(0)]
