"""Exchanges, queues and bindings: the routing of a message to queues. Pure; knows no connection and no topic.

Contract: amqp.md, "Model"; the specification, 3.1; RabbitMQ's exchange-to-exchange bindings and alternate exchanges.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from toymq_py.amqp.errors import (
    ACCESS_REFUSED,
    NOT_FOUND,
    PRECONDITION_FAILED,
    AmqpError,
    inequivalent,
)
from toymq_py.config.amqp_definitions import DEFAULT_VHOST
from toymq_py.errors import DamagedData

TYPES = ("direct", "fanout", "topic", "headers")
DELAYED = "x-delayed-message"
"""The type of an exchange that routes as the type in its argument ``x-delayed-type``, after the time in a message's header
``x-delay``."""
PREDECLARED = {"": "direct", **{f"amq.{kind}": kind for kind in TYPES}, "amq.match": "headers"}
ROUTES_CACHED_MAX = 10_000
"""Pairs of exchange and routing key whose queues are cached."""
BINDINGS_MAX = 20_000
EXCHANGES_MAX = 5_000
QUEUES_MAX = 10_000


@dataclass(frozen=True)
class Exchange:
    """An exchange. Clients cannot publish to an ``internal`` one."""

    name: str
    type: str
    durable: bool = True
    auto_delete: bool = False
    internal: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def routes_as(self) -> str:
        """The exchange type by which messages are routed."""
        return str(self.arguments.get("x-delayed-type")) if self.type == DELAYED else self.type


@dataclass(frozen=True)
class Queue:
    """A declared queue. ``topic``: the topic with its messages. An ``exclusive`` queue is deleted with its connection."""

    name: str
    topic: str
    durable: bool = True
    exclusive: bool = False
    auto_delete: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_temporary(self) -> bool:
        """Whether the queue does not outlive a restart of the broker."""
        return self.exclusive or (self.auto_delete and not self.durable)

    @property
    def goes_by_itself(self) -> bool:
        """Whether the queue is deleted without queue.delete: with its connection, its last consumer, or by ``x-expires``."""
        return self.exclusive or self.auto_delete or self.arguments.get("x-expires") is not None


@dataclass(frozen=True)
class Binding:
    """A binding: messages of ``source`` that match go to ``target``, a queue or an exchange."""

    source: str
    target: str
    to_exchange: bool
    routing_key: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def identity(self) -> tuple[str, str, bool, str, str]:
        return self.source, self.target, self.to_exchange, self.routing_key, json.dumps(self.arguments, sort_keys=True)


class Topology:
    """All exchanges, queues and bindings of a virtual host."""

    def __init__(self, vhost: str = DEFAULT_VHOST) -> None:
        self.vhost = vhost
        self.exchanges = {name: Exchange(name, kind) for name, kind in PREDECLARED.items()}
        self.queues: dict[str, Queue] = {}
        self.bindings: dict[tuple[str, str, bool, str, str], Binding] = {}
        self._by_source: dict[str, list[Binding]] = {}
        self._routes: dict[tuple[str, str], tuple[str, ...]] = {}

    # -- exchanges

    def exchange(self, name: str) -> Exchange:
        """Find an exchange. Raises: AmqpError (NOT_FOUND)."""
        found = self.exchanges.get(name)
        if found is None:
            raise AmqpError(NOT_FOUND, f"no exchange '{name}' in vhost '{self.vhost}'")
        return found

    def declare_exchange(self, wanted: Exchange) -> bool:
        """Add an exchange, or confirm one that is alike. Returns: whether it is new. Raises: AmqpError."""
        present = self.exchanges.get(wanted.name)
        if present is not None:
            of = f"exchange '{wanted.name}' in vhost '{self.vhost}'"
            for what in ("type", "durable", "auto_delete", "internal"):
                given, has = getattr(wanted, what), getattr(present, what)
                if given != has:
                    raise inequivalent(what, of, given, has)
            for what in sorted(wanted.arguments.keys() | present.arguments.keys()):
                given, has = wanted.arguments.get(what), present.arguments.get(what)
                if given != has:
                    raise inequivalent(what, of, given, has)
            return False
        if wanted.type != DELAYED and wanted.type not in TYPES:
            text = f"unknown exchange type '{wanted.type}': there are {', '.join((*TYPES, DELAYED))}"
            raise AmqpError(PRECONDITION_FAILED, text)  # RabbitMQ before 4: 503, of the connection
        if wanted.routes_as not in TYPES:
            text = f"invalid arg 'x-delayed-type': {wanted.routes_as!r} is none of {', '.join(TYPES)}"
            raise AmqpError(PRECONDITION_FAILED, text)
        if wanted.name.startswith("amq.") or not wanted.name:
            raise AmqpError(ACCESS_REFUSED, f"exchange name '{wanted.name}' contains reserved prefix 'amq.*'")
        _check_room(self.exchanges, EXCHANGES_MAX, "exchanges")
        self.exchanges[wanted.name] = wanted
        self._routes.clear()
        return True

    def delete_exchange(self, name: str, *, if_unused: bool = False) -> bool:
        """Remove an exchange with its bindings. Returns: whether it was there. Raises: AmqpError."""
        if name in PREDECLARED:
            raise AmqpError(ACCESS_REFUSED, f"exchange '{name}' is predeclared and stays")
        if name not in self.exchanges:
            return False
        if if_unused and self._by_source.get(name):
            raise AmqpError(PRECONDITION_FAILED, f"exchange '{name}' in use in vhost '{self.vhost}'")
        del self.exchanges[name]
        self._unbind_all(binding for binding in self.bindings.values() if name in _exchanges_of(binding))
        self._routes.clear()
        return True

    # -- queues

    def queue_added(self, queue: Queue) -> None:
        """Add a queue, or replace one of its name. Raises: AmqpError when there are too many."""
        if queue.name not in self.queues:
            _check_room(self.queues, QUEUES_MAX, "queues")
        self.queues[queue.name] = queue
        self._routes.clear()

    def queue_removed(self, name: str) -> None:
        """Forget a queue with its bindings. Idempotent."""
        self.queues.pop(name, None)
        self._unbind_all(binding for binding in self.bindings.values() if not binding.to_exchange and binding.target == name)
        self._routes.clear()

    # -- bindings

    def bind(self, binding: Binding) -> bool:
        """Add a binding. Returns: whether it is new. Raises: AmqpError."""
        if not binding.source or (binding.to_exchange and not binding.target):
            raise AmqpError(ACCESS_REFUSED, "operation not permitted on the default exchange")
        self.exchange(binding.source)
        if binding.to_exchange:
            self.exchange(binding.target)
        if binding.identity in self.bindings:
            return False
        if self.exchanges[binding.source].routes_as == "headers":
            match = binding.arguments.get("x-match", "all")
            if match not in ("all", "any", "all-with-x", "any-with-x"):
                raise AmqpError(PRECONDITION_FAILED, f"invalid x-match field value {match!r}: write all or any")
        _check_room(self.bindings, BINDINGS_MAX, "bindings")
        self.bindings[binding.identity] = binding
        self._by_source.setdefault(binding.source, []).append(binding)
        self._routes.clear()
        return True

    def unbind(self, binding: Binding) -> bool:
        """Remove a binding; an auto-delete source goes with its last binding. Returns: whether the binding existed."""
        if binding.identity not in self.bindings:
            return False
        self._unbind_all([self.bindings[binding.identity]])
        self._routes.clear()
        return True

    def _unbind_all(self, bindings: Iterable[Binding]) -> None:
        for binding in list(bindings):
            if self.bindings.pop(binding.identity, None) is None:
                continue
            left = self._by_source[binding.source]
            left.remove(binding)
            if not left:
                del self._by_source[binding.source]
                source = self.exchanges.get(binding.source)
                if source is not None and source.auto_delete:
                    self.delete_exchange(source.name)

    def bindings_of(self, source: str) -> int:
        """The number of bindings that lead away from an exchange."""
        return len(self._by_source.get(source, ()))

    def in_order(self) -> list[Binding]:
        """All bindings, by the name of their source."""
        return [binding for _, some in sorted(self._by_source.items()) for binding in some]

    # -- routing

    def route(self, exchange: str, routing_key: str, headers: Mapping[str, Any]) -> tuple[str, ...]:
        """The queues that a message is routed to, each once, in the order of their bindings. Raises: AmqpError (NOT_FOUND)."""
        if not exchange:
            return (routing_key,)  # the default exchange: the caller knows whether there is such a queue
        found = self._routes.get((exchange, routing_key))
        if found is not None:
            return found
        queues: dict[str, None] = {}
        by_headers = self._walk(self.exchange(exchange), routing_key, headers, queues, set())
        found = tuple(queues)
        if not by_headers:
            if len(self._routes) >= ROUTES_CACHED_MAX:
                self._routes.clear()
            self._routes[exchange, routing_key] = found
        return found

    def _walk(
        self, exchange: Exchange, routing_key: str, headers: Mapping[str, Any], queues: dict[str, None], seen: set[str]
    ) -> bool:
        """Add the queues that an exchange routes to, also through other exchanges. Returns: whether headers mattered."""
        if exchange.name in seen:
            return False
        seen.add(exchange.name)
        by_headers = exchange.routes_as == "headers"
        matched = False
        for binding in self._matching(exchange, routing_key, headers):
            matched = True
            if not binding.to_exchange:
                queues[binding.target] = None
            elif (target := self.exchanges.get(binding.target)) is not None:
                by_headers = self._walk(target, routing_key, headers, queues, seen) or by_headers
        alternate = exchange.arguments.get("alternate-exchange")
        if not matched and isinstance(alternate, str) and (instead := self.exchanges.get(alternate)) is not None:
            by_headers = self._walk(instead, routing_key, headers, queues, seen) or by_headers
        return by_headers

    def _matching(self, exchange: Exchange, routing_key: str, headers: Mapping[str, Any]) -> Iterator[Binding]:
        bindings = self._by_source.get(exchange.name, ())
        if exchange.routes_as == "fanout":
            yield from bindings
        elif exchange.routes_as == "direct":
            yield from (binding for binding in bindings if binding.routing_key == routing_key)
        elif exchange.routes_as == "topic":
            words = routing_key.split(".")
            yield from (binding for binding in bindings if topic_matches(binding.routing_key.split("."), words))
        else:
            yield from (binding for binding in bindings if headers_match(binding.arguments, headers))

    # -- on disk

    def to_json(self) -> dict[str, Any]:
        """The declarations that a restart restores: durable exchanges, queues, and the bindings between them. Temporary queues
        are included so that a restart can remove them."""
        lasting = {exchange.name for exchange in self.exchanges.values() if exchange.durable}
        return {
            "exchanges": [asdict(one) for one in self.exchanges.values() if one.durable and one.name not in PREDECLARED],
            "queues": [asdict(queue) for queue in self.queues.values()],
            "bindings": [
                asdict(binding) for binding in self.bindings.values()
                if binding.source in lasting and (not binding.to_exchange or binding.target in lasting)
            ],
        }  # fmt: skip

    @classmethod
    def from_json(cls, found: Mapping[str, Any], vhost: str = DEFAULT_VHOST) -> "Topology":
        """Restore a topology. Raises: DamagedData."""
        topology = cls(vhost)
        try:
            for exchange in found["exchanges"]:
                topology.exchanges[exchange["name"]] = Exchange(**exchange)
            for queue in found["queues"]:
                topology.queues[queue["name"]] = Queue(**queue)
            for one in found["bindings"]:
                binding = Binding(**one)
                topology.bindings[binding.identity] = binding
                topology._by_source.setdefault(binding.source, []).append(binding)
        except (KeyError, TypeError) as error:
            raise DamagedData(f"invalid exchanges and queues: {error}") from None
        return topology


def topic_matches(pattern: list[str], words: list[str]) -> bool:
    """Whether the words of a routing key match a pattern: ``*`` is one word, ``#`` none or more. Takes linear memory, and time
    in proportion to the product of both lengths, even with many ``#``."""
    reached = {0}
    for wanted in pattern:
        if wanted == "#":
            reached = set(range(min(reached), len(words) + 1))
        else:
            reached = {at + 1 for at in reached if at < len(words) and wanted in ("*", words[at])}
        if not reached:
            return False
    return len(words) in reached


def headers_match(wanted: Mapping[str, Any], headers: Mapping[str, Any]) -> bool:
    """Whether headers match all or any of a binding's arguments; those named ``x-…`` count only if x-match is ``…-with-x``."""
    match = str(wanted.get("x-match", "all"))
    with_x = match.endswith("-with-x")
    names = [name for name in wanted if name != "x-match" and (with_x or not name.startswith("x-"))]
    hits = (name in headers and (wanted[name] is None or headers[name] == wanted[name]) for name in names)
    return any(hits) if match.startswith("any") else all(hits)


def _exchanges_of(binding: Binding) -> tuple[str, ...]:
    return (binding.source, binding.target) if binding.to_exchange else (binding.source,)


def _check_room(present: Mapping[Any, Any], most: int, what: str) -> None:
    if len(present) >= most:
        raise AmqpError(PRECONDITION_FAILED, f"there are {most} {what}, the limit")
