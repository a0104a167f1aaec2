"""The virtual hosts of a broker: each has exchanges, queues and bindings of its own. ADR 0164.

``/`` always exists, ``--amqp-vhost`` adds others. The declarations of a virtual host that is not served any more stay in
``amqp.json``.
"""

import asyncio
from collections.abc import Iterable, Iterator

from toymq_py.amqp.errors import NOT_ALLOWED, AmqpError
from toymq_py.amqp.expiry import Expiries
from toymq_py.amqp.queues import Queues
from toymq_py.amqp.topology import Topology
from toymq_py.amqp.topology_file import TopologyFile
from toymq_py.broker import Broker
from toymq_py.clock import Clock
from toymq_py.config.amqp_definitions import DEFAULT_VHOST


class Vhosts:
    """All virtual hosts of a broker. Call ``load`` first. Belongs to the event loop."""

    def __init__(self, broker: Broker, loop: asyncio.AbstractEventLoop, names: Iterable[str] = ()) -> None:
        """``names``: the virtual hosts beside ``/``."""
        self.broker = broker
        self._file = TopologyFile(broker)
        self._loop = loop
        self._by_name = {name: Queues(broker, loop, self._file, name) for name in (DEFAULT_VHOST, *names)}

    def __iter__(self) -> Iterator[Queues]:
        return iter(self._by_name.values())

    @property
    def default(self) -> Queues:
        """The queues of the virtual host ``/``."""
        return self._by_name[DEFAULT_VHOST]

    def find(self, name: str) -> Queues:
        """The queues of a virtual host; an empty name is ``/``. Raises: AmqpError (NOT_ALLOWED)."""
        found = self._by_name.get(name or DEFAULT_VHOST)
        if found is None:
            there = ", ".join(self._by_name)
            raise AmqpError(NOT_ALLOWED, f"vhost '{name[:60]}' not found: there are {there[:60]}, and --amqp-vhost adds one")
        return found

    def watch(self, clock: Clock) -> None:
        """Let messages expire from now on; call it after ``load``."""
        for queues in self:
            queues.expiries = Expiries(queues, clock, self._loop)

    async def load(self) -> None:
        """Read ``amqp.json``, and remove declarations that do not outlive a restart. Raises: DamagedData, OSError."""
        for name, found in self._file.read().items():
            if (queues := self._by_name.get(name)) is not None:
                await queues.load(Topology.from_json(found, name))

    def read(self) -> None:
        """Read ``amqp.json`` without changing it, and add the virtual hosts in it. Blocks. Raises: DamagedData, OSError."""
        for name in self._file.read():
            self.add(name)
        for name, found in self._file.read().items():
            self._by_name[name].topology = Topology.from_json(found, name)

    def add(self, name: str) -> None:
        """Add a virtual host. Idempotent."""
        if name not in self._by_name:
            self._by_name[name] = Queues(self.broker, self._loop, self._file, name)

    async def save(self) -> None:
        """Put changed declarations on stable storage (``TopologyFile.save``). Raises: RequestError."""
        await self._file.save()

    def close(self) -> None:
        """Stop all timers."""
        for queues in self:
            queues.close()

    async def settle(self) -> None:
        """Wait until removals of queues that have begun are done."""
        for queues in self:
            await queues.settle()
