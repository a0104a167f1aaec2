"""``toymq.sync.open``: the blocking form of ``toymq.open``.

Contract: clients.md. If this process serves the directory, a separate thread does, also between the calls of this client.
"""

import os
from random import Random

from toymq.arguments import Seconds, number_of_seconds
from toymq.errors import ClientClosed
from toymq.options import InjectHeaders, MessageTracing, OnEvent, Options
from toymq.sync.call_guard import one_thread
from toymq.sync.client import Client
from toymq_py.config.options import BrokerOptions
from toymq_py.embedded.asyncio import FORKED, client_options
from toymq_py.embedded.host import EmbeddedHost


class EmbeddedClient(Client):
    """A blocking client of the process that serves the directory, which may be this one. Made by ``toymq.sync.open``."""

    def __init__(self, options: Options, host: EmbeddedHost) -> None:
        super().__init__(options)
        self._host = host

    @one_thread
    def open(self) -> "EmbeddedClient":
        """Serve the directory, or connect to the process that does. Raises: as ``toymq.sync.open``."""
        self._open_or_raise()
        try:
            self._host.start()
            self._host.ready.result()
            super().open()
        except BaseException:
            super().close()
            self._host.stop()
            raise
        return self

    def __enter__(self) -> "EmbeddedClient":
        return self

    @one_thread
    def close(self) -> None:
        """Close the client, then stop serving: another process that has the directory open takes over. Idempotent."""
        try:
            super().close()
        finally:
            self._host.close()

    def _open_or_raise(self) -> None:
        if self._host.forked:
            raise ClientClosed(FORKED)
        super()._open_or_raise()


def open(
    path: str | os.PathLike[str], *, options: BrokerOptions | None = None, name: str | None = None, timeout_s: Seconds = 30.0,
    wait_s: Seconds = 10.0, idempotent: bool = True, on_event: OnEvent | None = None,
    inject_headers: InjectHeaders | None = None, tracing: MessageTracing | None = None, random: Random | None = None,
) -> EmbeddedClient:  # fmt: skip
    """Open a queue in a directory; arguments as for ``toymq.open``.

    Raises: ConfigError, BadArgument, DirectoryLocked (a ``toymq serve`` has it), DataDirectoryError, ConnectFailed. Calls raise
        DirectoryLost when the directory was removed or replaced below it.
    """
    host = EmbeddedHost(path, options, number_of_seconds("wait_s", wait_s))
    return EmbeddedClient(
        client_options(host, name, timeout_s, wait_s, idempotent, on_event, inject_headers, tracing, random), host
    ).open()
