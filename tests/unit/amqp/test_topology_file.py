"""The declarations of all virtual hosts in one file, and writes that several declarations share. ADR 0123, 0164."""

import asyncio
from collections.abc import Callable
from typing import Any

from toymq_py.amqp.topology_file import TopologyFile


class Directory:
    """A data directory with stored declarations; ``stored`` has the writes that have begun."""

    def __init__(self, found: dict[str, Any]) -> None:
        self.directory = self
        self.found = found
        self.writes: list[tuple[dict[str, Any], Callable[[Any], None]]] = []

    def read_amqp(self) -> dict[str, Any]:
        return self.found

    def store_amqp(self, topology: dict[str, Any], done: Callable[[Any], None]) -> None:
        self.writes.append((topology, done))


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def empty() -> dict[str, Any]:
    return {"exchanges": [], "queues": [], "bindings": []}


async def test_changes_during_a_write_share_the_next_one() -> None:
    broker: Any = Directory({})
    file = TopologyFile(broker)
    file.sources["/"] = empty
    first = asyncio.ensure_future(file.save())
    await turns()
    others = [asyncio.ensure_future(file.save()) for _ in range(3)]
    await turns()
    assert len(broker.writes) == 1
    broker.writes[0][1](None)
    await first
    await turns()
    assert len(broker.writes) == 2
    broker.writes[1][1](None)
    await asyncio.gather(*others)
    assert len(broker.writes) == 2


async def test_hosts_that_are_not_served_stay_in_the_file() -> None:
    has = {**empty(), "exchanges": [{"name": "logs"}]}
    broker: Any = Directory({**empty(), "vhosts": {"prod": has, "old": has}})
    file = TopologyFile(broker)
    file.sources |= {"/": empty, "prod": lambda: has, "new": empty}
    assert file.read() == {"/": empty(), "prod": has, "old": has}
    saved = asyncio.ensure_future(file.save())
    await turns()
    (written, done), = broker.writes
    assert written == broker.found, "one that has nothing is left out"
    done(None)
    await saved


async def test_a_broker_with_one_host_writes_what_it_wrote_before() -> None:
    broker: Any = Directory({})
    file = TopologyFile(broker)
    file.sources["/"] = empty
    assert file.read() == {}
    saved = asyncio.ensure_future(file.save())
    await turns()
    assert broker.writes[0][0] == empty()
    broker.writes[0][1](None)
    await saved
