"""Wires the process of a broker: loop, memory, descriptors, server, signals. The only home of uvloop."""

import asyncio
import contextlib
import gc
import logging
import resource
import signal
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import uvloop

from toymq_py import memory
from toymq_py.clock import SystemClock
from toymq_py.config import ServeOptions
from toymq_py.schema import parse_address
from toymq_py.server import Server
from toymq_py.service import opened_broker

logger = logging.getLogger("toymq_py.daemon")

DESCRIPTORS_SPARE = 256
"""Kept for segments and directories: who holds all connections must not keep the disk from a topic."""


def serve(options: ServeOptions, ready: Callable[[list[str]], None]) -> None:
    """Run a broker until SIGTERM or SIGINT; a second signal ends the process at once.

    Args:
        ready: called with the addresses, ``host:port``, once connections are accepted.

    Raises: DirectoryLocked, DataDirectoryError; OSError when the address cannot be used.
    """
    options = replace(options, max_connections=room_for_connections(options.max_connections))
    memory.set_up()
    _run(_serve(options, ready))


def _run(main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


async def _serve(options: ServeOptions, ready: Callable[[list[str]], None]) -> None:
    loop = asyncio.get_running_loop()
    clock = SystemClock()
    listeners = Server.bind(*parse_address(options.listen))
    try:
        with opened_broker(options, clock, loop) as broker:
            gc.collect()
            gc.freeze()  # what recovery made stays; the collector need not look at it again and again
            server = Server(broker, clock, loop, some_left=memory.Keeper(loop).look)
            _handle_signals(loop, server)
            addresses = [_address(*listener.getsockname()[:2]) for listener in listeners]
            loop.call_soon(ready, addresses)
            await server.run(listeners)
    finally:
        for listener in listeners:
            listener.close()


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _handle_signals(loop: asyncio.AbstractEventLoop, server: Server) -> None:
    def stop() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)  # a second signal exits at once
        server.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)


def room_for_connections(max_connections: int) -> int:
    """Raise the soft descriptor limit to the hard one. Returns: how many connections leave the files their descriptors, at most
    ``max_connections``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
    room = max(soft - DESCRIPTORS_SPARE, soft // 2)
    if soft == resource.RLIM_INFINITY or room >= max_connections:
        return max_connections
    logger.warning("%d descriptors are allowed: %d connections, fewer than --max-connections %d", soft, room, max_connections)
    return room
