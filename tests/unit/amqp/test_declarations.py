"""A declaration gets its line in the audit trail once it is stored."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from toymq_py.amqp.declarations import Declarations
from toymq_py.amqp.login import OpenRights
from toymq_py.amqp.methods import decode, payload
from toymq_py.amqp.topology import Topology
from toymq_py.errors import DiskFull


@pytest.mark.parametrize("values", [
    ("exchange.declare", {"exchange": "news", "type": "fanout"}), ("queue.declare", {"queue": "orders"}),
    ("exchange.delete", {"exchange": "news"}), ("queue.delete", {"queue": "orders"}),
])  # fmt: skip
@pytest.mark.parametrize("is_full", [True, False])
def test_what_could_not_be_stored_is_not_in_the_audit_trail_with_ok(values: tuple[str, dict[str, Any]], is_full: bool) -> None:
    """Found: a queue and an exchange had their lines before they were written to the disk."""
    trail = list[str]()

    async def store(*_: object, **__: object) -> Any:
        if is_full:
            raise DiskFull("the disk is full")
        return (True, (0, 0)) if values[0] == "queue.declare" else 1

    async def declared(wanted: object, *args: Any, **_: object) -> Any:
        args[-1]()
        return await store()

    queues: Any = SimpleNamespace(
        topology=Topology(), topic_name=str, is_undeclared=lambda wanted: False, declare=declared, declare_exchange=declared,
        delete=store, delete_exchange=store,
    )  # fmt: skip
    owner: Any = SimpleNamespace(rights=OpenRights(), audit=lambda action, about: trail.append(action))
    declarations = Declarations(owner, queues, lambda name, **values: None)
    name, given = values
    later = declarations.handlers[name](decode(payload(name, **given)))
    assert later is not None

    async def run() -> None:
        await later

    if is_full:
        with pytest.raises(DiskFull):
            asyncio.run(run())
    else:
        asyncio.run(run())
    assert trail == ([] if is_full else [name])
