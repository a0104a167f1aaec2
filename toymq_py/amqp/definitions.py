"""Exchanges, queues and bindings for operators: list those declared, and declare those of a definitions file.

Contract: amqp.md, "Model" (definitions); ``config/amqp_definitions.py`` has their form. ADR 0162.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from toymq_py.amqp.arguments import checked
from toymq_py.amqp.errors import AmqpError
from toymq_py.amqp.queues import Queues
from toymq_py.amqp.topology import PREDECLARED, Binding, Exchange, Queue, Topology
from toymq_py.amqp.vhosts import Vhosts
from toymq_py.config.amqp_definitions import AmqpDefinition, Declare, by_key, plan
from toymq_py.config.definitions import done_before
from toymq_py.errors import BadArgument, RequestError

_OWNER = object()
"""An owner that has no exclusive queues."""


def defined(topology: Topology) -> Iterator[AmqpDefinition]:
    """The durable exchanges, queues and bindings of a virtual host, as definitions."""
    for exchange in topology.exchanges.values():
        if exchange.durable and exchange.name not in PREDECLARED:
            yield AmqpDefinition("exchange", exchange_values(topology, exchange))
    for queue in topology.queues.values():
        if not queue.is_temporary:
            yield AmqpDefinition("queue", queue_values(topology, queue))
    for binding in topology.bindings.values():
        if _outlives(topology, binding):
            yield AmqpDefinition("binding", binding_values(topology, binding))


def _outlives(topology: Topology, binding: Binding) -> bool:
    source, target = topology.exchanges.get(binding.source), topology.exchanges.get(binding.target)
    if source is None or not source.durable:
        return False
    if binding.to_exchange:
        return target is not None and target.durable
    queue = topology.queues.get(binding.target)
    return queue is not None and not queue.is_temporary


def exchange_rows(queues: Queues) -> Iterator[dict[str, Any]]:
    """JSON objects of all exchanges, by name."""
    topology = queues.topology
    for _, exchange in sorted(topology.exchanges.items()):
        predeclared = exchange.name in PREDECLARED
        yield {
            **exchange_values(topology, exchange), "durable": exchange.durable, "predeclared": predeclared,
            "alternate": exchange.arguments.get("alternate-exchange"), "bindings": topology.bindings_of(exchange.name),
            "lasting": exchange.durable and not predeclared,
        }  # fmt: skip


def queue_rows(queues: Queues) -> Iterator[dict[str, Any]]:
    """JSON objects of the queues that were declared, by name."""
    for _, queue in sorted(queues.topology.queues.items()):
        if not queues.broker.has(queue.topic):  # deleted meanwhile
            continue
        ready, consumers = queues.counts(queue.name, queues.broker.topic(queue.topic))
        yield {
            **queue_values(queues.topology, queue), "topic": queue.topic, "exclusive": queue.exclusive, "ready": ready,
            "consumers": consumers,
            "lasting": not queue.is_temporary,
        }  # fmt: skip


def binding_rows(queues: Queues) -> Iterator[dict[str, Any]]:
    """JSON objects of all bindings, by their exchange."""
    for binding in queues.topology.in_order():
        yield {**binding_values(queues.topology, binding), "lasting": _outlives(queues.topology, binding)}


def exchange_values(topology: Topology, exchange: Exchange) -> dict[str, Any]:
    return {
        "vhost": topology.vhost, "name": exchange.name, "type": exchange.type, "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": dict(exchange.arguments),
    }  # fmt: skip


def queue_values(topology: Topology, queue: Queue) -> dict[str, Any]:
    return {
        "vhost": topology.vhost, "name": queue.name, "durable": queue.durable, "auto_delete": queue.auto_delete,
        "arguments": dict(queue.arguments),
    }  # fmt: skip


def binding_values(topology: Topology, binding: Binding) -> dict[str, Any]:
    queue, exchange = (None, binding.target) if binding.to_exchange else (binding.target, None)
    return {
        "vhost": topology.vhost, "source": binding.source, "queue": queue, "exchange": exchange,
        "routing_key": binding.routing_key,
        "arguments": dict(binding.arguments),
    }  # fmt: skip


async def declare_defined(vhosts: Vhosts, wanted: Iterable[AmqpDefinition]) -> list[Declare]:
    """Declare, durably, the definitions that do not exist yet.

    Returns: what was declared. Raises: BadArgument, which names the failed definition and those declared before, which stay.
    """
    present = by_key(each for queues in vhosts for each in defined(queues.topology))
    changes = plan(by_key(wanted), present)
    for at, change in enumerate(changes):
        try:
            if (refusal := change.refusal) is not None:
                raise BadArgument(f"{change}: {refusal}")
            await _declare(vhosts.find(change.definition.values["vhost"]), change.definition)
        except (AmqpError, RequestError) as error:
            if at:
                await vhosts.save()
            text = error.reply_text if isinstance(error, AmqpError) else str(error)
            raise BadArgument(f"{change.definition.name}: {text}{done_before(changes[:at])}") from None
    if changes:
        await vhosts.save()
    return changes


async def _declare(queues: Queues, definition: AmqpDefinition) -> None:
    """Declare what a definition describes. Raises: AmqpError, RequestError, OSError."""
    values: Mapping[str, Any] = definition.values
    arguments = checked(values["arguments"])
    if definition.kind == "exchange":
        queues.topology.declare_exchange(
            Exchange(values["name"], values["type"], True, values["auto_delete"], values["internal"], arguments)
        )
    elif definition.kind == "queue":
        name = values["name"]
        queue = Queue(name, queues.topic_name(name), values["durable"], False, values["auto_delete"], arguments)
        if queue.is_temporary:
            raise BadArgument("it would not outlive a restart: auto_delete is for a durable queue")
        await queues.declare(queue, _OWNER, lambda: None, defined=True)
    else:
        to_exchange = values["queue"] is None
        target = values["exchange"] if to_exchange else values["queue"]
        binding = Binding(values["source"], target, to_exchange, values["routing_key"], arguments)
        await queues.bind(binding, _OWNER, saved=False)
