"""``toymq.open``: a queue in a directory, with no broker to run. For asyncio; ``blocking`` is the form without.

Contract: clients.md. A client of the ordinary kind, and a candidate to serve the directory beside it.
"""

import asyncio
import os
from random import Random

from toymq.client import Client
from toymq.errors import ClientClosed
from toymq.link import Link
from toymq.options import InjectHeaders, MessageTracing, OnEvent, Options
from toymq.url import UNIX, parse_urls
from toymq_py.config.options import BrokerOptions
from toymq_py.embedded.host import CLOSE_S, RETRY_MAX_S, RETRY_MIN_S, Candidate

CONNECT_TIMEOUT_S = 5.0
"""For the greeting of a server that has taken the connection."""
FORKED = "this process was forked from the one that opened the directory: open it again here"


class EmbeddedClient(Client):
    """A client of the process that serves the directory, and a candidate to serve it. Made by ``toymq.open``."""

    def __init__(self, options: Options, candidate: Candidate) -> None:
        super().__init__(options)
        self._candidate = candidate

    async def open(self) -> "EmbeddedClient":
        """Serve the directory, or reach whoever does. Raises: DirectoryLocked, DataDirectoryError, ConnectFailed,
        ClientClosed."""
        try:
            if not self._closed:
                self._candidate.start()
                await asyncio.wrap_future(self._candidate.ready)
            await super().open()
        except BaseException:
            self._candidate.stop()
            self._closed = True
            raise
        return self

    async def __aenter__(self) -> "EmbeddedClient":
        return await self.open()

    async def close(self) -> None:
        """As that of every client, and then give the directory back; if this process served it, another takes over.

        Idempotent. Takes a second and what it takes to write down the acks.
        """
        try:
            await super().close()
        finally:
            self._candidate.stop()
            if self._candidate.started and not self._candidate.forked:
                await asyncio.wait((asyncio.wrap_future(self._candidate.ended),), timeout=CLOSE_S)

    @property
    def _link(self) -> Link:
        if self._candidate.forked:
            raise ClientClosed(FORKED)
        return super()._link


def open(
    path: str | os.PathLike[str],
    *,
    options: BrokerOptions | None = None,
    name: str | None = None,
    timeout_s: float = 30.0,
    wait_s: float = 10.0,
    idempotent: bool = True,
    on_event: OnEvent | None = None,
    inject_headers: InjectHeaders | None = None,
    tracing: MessageTracing | None = None,
    random: Random | None = None,
) -> EmbeddedClient:
    """A queue in a directory: ``async with toymq.open("./queue") as mq``, then as with ``toymq.connect``.

    The first process that opens a directory serves it, from a thread with its own loop; others reach it through a Unix socket
    in it, and when the server ends, or is killed, another one takes over within a second. Requests that are under way then are
    said again, as after any lost connection. It is an ordinary data directory: ``toymq serve`` may serve it, but not at the
    same time.

    Args:
        path: of the directory; it is made when it is not there. The right to write in it is the right to use the queue.
        options: to serve with, should it be us; ``data_dir`` must be left out.
        name: of this client, for whoever serves.
        timeout_s: for every request, the time without a server included.
        wait_s: how long the first server may take, for its recovery say.
        idempotent, on_event, inject_headers, tracing, random: as of ``toymq.connect``.

    Raises: ConfigError, BadArgument; when it is entered DirectoryLocked (a ``toymq serve`` has it), DataDirectoryError,
        ConnectFailed.
    """
    candidate = Candidate(path, options, wait_s)
    return EmbeddedClient(
        client_options(candidate, name, timeout_s, wait_s, idempotent, on_event, inject_headers, tracing, random), candidate
    )


def client_options(
    candidate: Candidate, name: str | None, timeout_s: float, wait_s: float, idempotent: bool, on_event: OnEvent | None,
    inject_headers: InjectHeaders | None, tracing: MessageTracing | None, random: Random | None,
) -> Options:  # fmt: skip
    """Of a client that reaches the directory's server through its socket. Raises: ConfigError, BadArgument."""
    return Options(
        parse_urls(UNIX + candidate.socket_path), name, None, timeout_s, CONNECT_TIMEOUT_S, wait_s, RETRY_MIN_S, RETRY_MAX_S,
        idempotent, on_event, inject_headers, tracing, random or Random(),
    )  # fmt: skip
