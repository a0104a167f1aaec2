"""``toymq.sync.open``: the blocking form of ``toymq.open``.

Contract: clients.md. The server, should it be us, has a thread of its own: it goes on while this client is not called.
"""

import os
from random import Random

from toymq.errors import ClientClosed
from toymq.options import InjectHeaders, MessageTracing, OnEvent, Options
from toymq.sync.client import Client
from toymq_py.config.options import BrokerOptions
from toymq_py.embedded.asyncio import FORKED, client_options
from toymq_py.embedded.host import Candidate


class EmbeddedClient(Client):
    """A blocking client of the process that serves the directory, and a candidate to serve it. Made by ``open``."""

    def __init__(self, options: Options, candidate: Candidate) -> None:
        super().__init__(options)
        self._candidate = candidate

    def open(self) -> "EmbeddedClient":
        """What ``toymq.sync.open`` does."""
        self._open_or_raise()
        try:
            self._candidate.start()
            self._candidate.ready.result()
            super().open()
        except BaseException:
            super().close()
            self._candidate.stop()
            raise
        return self

    def __enter__(self) -> "EmbeddedClient":
        return self

    def close(self) -> None:
        """As that of every client, and then give the directory back; if this process served it, another takes over.

        Idempotent. Takes a second and what it takes to write down the acks.
        """
        try:
            super().close()
        finally:
            self._candidate.close()

    def _open_or_raise(self) -> None:
        if self._candidate.forked:
            raise ClientClosed(FORKED)
        super()._open_or_raise()


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
    """Open the queue in a directory. Arguments are those of ``toymq.open``.

    Raises: ConfigError, BadArgument, DirectoryLocked (a ``toymq serve`` has it), DataDirectoryError, ConnectFailed.
    """
    candidate = Candidate(path, options, wait_s)
    return EmbeddedClient(
        client_options(candidate, name, timeout_s, wait_s, idempotent, on_event, inject_headers, tracing, random), candidate
    ).open()
