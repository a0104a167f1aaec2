"""``toymq.open``: a queue in a directory, without a broker to run. For asyncio; ``blocking`` has the blocking form.

Contract: clients.md. An ordinary client, with an ``EmbeddedHost`` beside it that serves the directory.
"""

import asyncio
import os
from random import Random

from toymq.arguments import Seconds, number_of_seconds
from toymq.client import Client
from toymq.errors import ClientClosed
from toymq.link import Link
from toymq.options import InjectHeaders, MessageTracing, OnEvent, Options, times
from toymq.url import UNIX, parse_urls
from toymq_py.config.options import BrokerOptions
from toymq_py.embedded.host import CLOSE_S, RETRY_MAX_S, RETRY_MIN_S, EmbeddedHost

CONNECT_TIMEOUT_S = 5.0
"""The time for the greeting of a server that has taken the connection."""
FORKED = "this process was forked from the one that opened the directory: open it again here"


class EmbeddedClient(Client):
    """A client of the process that serves the directory, which may be this one. Made by ``toymq.open``."""

    def __init__(self, options: Options, host: EmbeddedHost) -> None:
        super().__init__(options)
        self._host = host

    async def open(self) -> "EmbeddedClient":
        """Serve the directory, or connect to the process that does. Raises: DirectoryLocked, DataDirectoryError, ConnectFailed,
        ClientClosed."""
        try:
            if not self._closed:
                self._host.start()
                await asyncio.wrap_future(self._host.ready)
            await super().open()
        except BaseException:
            self._host.stop()
            self._closed = True
            raise
        return self

    async def __aenter__(self) -> "EmbeddedClient":
        return await self.open()

    async def close(self) -> None:
        """Close the client, then stop serving: another process that has the directory open takes over.

        Idempotent. Takes about a second, and the time to store the acks.
        """
        try:
            await super().close()
        finally:
            self._host.stop()
            if self._host.started and not self._host.forked:
                await asyncio.wait((asyncio.wrap_future(self._host.ended),), timeout=CLOSE_S)

    @property
    def _link(self) -> Link:
        if self._host.forked:
            raise ClientClosed(FORKED)
        return super()._link


def open(
    path: str | os.PathLike[str], *, options: BrokerOptions | None = None, name: str | None = None, timeout_s: Seconds = 30.0,
    wait_s: Seconds = 10.0, idempotent: bool = True, on_event: OnEvent | None = None,
    inject_headers: InjectHeaders | None = None, tracing: MessageTracing | None = None, random: Random | None = None,
) -> EmbeddedClient:  # fmt: skip
    """Open a queue in a directory: ``async with toymq.open("./queue") as mq``, then as with ``toymq.connect``.

    The first process that opens a directory serves it, from a thread with its own event loop. Others connect to it through a
    Unix socket in the directory. When it ends or is killed, another one takes over within a second, and requests under way are
    sent again, as after any lost connection. It is an ordinary data directory: ``toymq serve`` may serve it, but not at the
    same time.

    Args:
        path: the directory, which is created if it is missing. The right to write in it is the right to use the queue.
        options: the broker's options, used if this process serves; leave out ``data_dir``.
        name: the name of this client, for the broker's log.
        timeout_s: the time limit of every request, including the time without a server.
        wait_s: how long to wait for the first server, which may be recovering.
        idempotent, on_event, inject_headers, tracing, random: as for ``toymq.connect``.

    Raises: ConfigError, BadArgument; on entry also DirectoryLocked (a ``toymq serve`` has it), DataDirectoryError,
        ConnectFailed. When the directory is removed or replaced below it, every call raises DirectoryLost: open it again.
    """
    host = EmbeddedHost(path, options, number_of_seconds("wait_s", wait_s))
    return EmbeddedClient(
        client_options(host, name, timeout_s, wait_s, idempotent, on_event, inject_headers, tracing, random), host
    )


def client_options(
    host: EmbeddedHost, name: str | None, timeout_s: Seconds, wait_s: Seconds, idempotent: bool, on_event: OnEvent | None,
    inject_headers: InjectHeaders | None, tracing: MessageTracing | None, random: Random | None,
) -> Options:  # fmt: skip
    """Options of a client that connects to the directory's socket. Raises: ConfigError, BadArgument."""
    return Options(
        parse_urls(UNIX + host.socket_path), name, None, *times(timeout_s, CONNECT_TIMEOUT_S, wait_s, RETRY_MIN_S, RETRY_MAX_S),
        idempotent, on_event, inject_headers, tracing, random or Random(), lost=host.lost,
    )  # fmt: skip
