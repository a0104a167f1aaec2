"""Writes the declarations of all virtual hosts to ``amqp.json``; changes that come during a write share the next one.

The virtual host ``/`` stands at the top level of the JSON, others under ``vhosts``. ADR 0123, 0164.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from toymq_py.broker import Broker
from toymq_py.broker_waits import stored
from toymq_py.config.amqp_definitions import DEFAULT_VHOST

OTHERS = "vhosts"
"""The key of all virtual hosts but the default one."""


class TopologyFile:
    """The file ``amqp.json`` of one broker. Belongs to the event loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.sources: dict[str, Callable[[], dict[str, Any]]] = {}
        """For each virtual host, a function that returns its state to store."""
        self._unknown: dict[str, Any] = {}  # of virtual hosts that are not served now: kept
        self._saving = asyncio.Lock()
        self._changes = self._saved = 0

    def read(self) -> dict[str, Any]:
        """The content of the file by virtual host. Blocks. Raises: DamagedData, OSError."""
        found = dict(self._broker.directory.read_amqp())
        others = found.pop(OTHERS, {})
        by_vhost = {DEFAULT_VHOST: found, **others} if found else {}
        self._unknown = {name: has for name, has in by_vhost.items() if name not in self.sources}
        return by_vhost

    def changed(self) -> None:
        """Note a change; the next ``save`` writes it."""
        self._changes += 1

    async def save(self) -> None:
        """Put everything on stable storage; changes that come meanwhile share one write. Raises: RequestError."""
        self._changes += 1
        wanted = self._changes
        async with self._saving:
            if self._saved >= wanted:
                return
            now = self._changes
            await stored(partial(self._broker.directory.store_amqp, self._content()))
            self._saved = now

    def _content(self) -> dict[str, Any]:
        others = dict(self._unknown)
        found: dict[str, Any] = {}
        for name, source in self.sources.items():
            if name == DEFAULT_VHOST:
                found = source()
            elif any((has := source()).values()):
                others[name] = has
        return {**found, OTHERS: others} if others else found
