"""Declarations of one AMQP channel: its methods on exchanges, queues and bindings.

Contract: amqp.md, "Model". A method returns a coroutine where it has to wait for the disk. Belongs to the event loop.
"""

import secrets
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Protocol

from toymq_py.amqp import arguments
from toymq_py.amqp.errors import ACCESS_REFUSED, NOT_FOUND, AmqpError
from toymq_py.amqp.login import OpenRights
from toymq_py.amqp.methods import Method
from toymq_py.amqp.queues import Queues
from toymq_py.amqp.replies import REPLY_TO, is_reply_name
from toymq_py.amqp.topology import Binding, Exchange, Queue

Later = Coroutine[Any, Any, None] | None
COUNT_MAX = 0xFFFFFFFF
"""The largest count of messages that AMQP can tell."""


class Owner(Protocol):
    """What declarations need of a connection, which owns exclusive queues."""

    @property
    def rights(self) -> OpenRights:
        """The rights of the connection's token."""

    def audit(self, action: str, about: Mapping[str, str], result: str = ...) -> None:
        """Record in the audit trail that something was made, changed, removed or refused."""


class Declarations:
    """The AMQP methods ``exchange.*`` and ``queue.*`` of one channel."""

    def __init__(self, owner: Owner, queues: Queues, reply: Callable[..., None]) -> None:
        """``reply`` writes a method of this channel."""
        self._owner = owner
        self.queues = queues
        self._reply = reply
        self._last_queue = ""
        self.handlers: Mapping[str, Callable[[Method], Later]] = {
            "exchange.declare": self._exchange_declare, "exchange.delete": self._exchange_delete,
            "exchange.bind": partial(self._bind_exchange, bind=True),
            "exchange.unbind": partial(self._bind_exchange, bind=False),
            "queue.declare": self._queue_declare, "queue.delete": self._queue_delete, "queue.purge": self._queue_purge,
            "queue.bind": partial(self._bind_queue, bind=True), "queue.unbind": partial(self._bind_queue, bind=False),
        }  # fmt: skip

    def _exchange_declare(self, method: Method) -> Later:
        name = method["exchange"]
        if method["passive"]:
            self.queues.topology.exchange(name)
            if not method["no_wait"]:
                self._reply("exchange.declare-ok")
            return None
        wanted = Exchange(
            name, method["type"], method["durable"], method["auto_delete"], method["internal"],
            arguments.checked(method["arguments"]),
        )  # fmt: skip
        about = {"exchange": name}
        if name in self.queues.topology.exchanges:
            self._owner.rights.declare_exchange(name)
        return self._change(self.queues.declare_exchange(wanted, partial(self._owner.rights.administer, about)), method, about)

    def _exchange_delete(self, method: Method) -> Later:
        about = {"exchange": method["exchange"]}
        self._owner.rights.administer(about)
        return self._change(self.queues.delete_exchange(method["exchange"], if_unused=method["if_unused"]), method, about)

    def _bind_exchange(self, method: Method, *, bind: bool) -> Later:
        source, target = method["source"], method["destination"]
        about = {"exchange": target, "source": source, "routing_key": method["routing_key"]}
        self._owner.rights.administer(about)
        binding = Binding(source, target, True, method["routing_key"], arguments.checked(method["arguments"]))
        return self._change_binding(binding, method, about, bind=bind)

    def _bind_queue(self, method: Method, *, bind: bool) -> Later:
        queue = self.queue_of(method)
        routing_key = method["routing_key"] or ("" if method["queue"] else queue)
        about = {"topic": self.queues.topic_name(queue), "source": method["exchange"], "routing_key": routing_key}
        self._owner.rights.administer(about)
        binding = Binding(method["exchange"], queue, False, routing_key, arguments.checked(method["arguments"]))
        return self._change_binding(binding, method, about, bind=bind)

    def _change_binding(self, binding: Binding, method: Method, about: Mapping[str, str], *, bind: bool) -> Later:
        return self._change(self.queues.bind(binding, self._owner) if bind else self.queues.unbind(binding), method, about)

    async def _change(self, work: Coroutine[Any, Any, bool], method: Method, about: Mapping[str, str]) -> None:
        """Run a change and record it. ``work`` returns whether it changed something: only then is a line written, since
        consumers that declare and bind anew at each start would fill the audit trail."""
        if await work:
            self._owner.audit(method.name, about)
        if not method.get("no_wait"):
            self._reply(f"{method.name}-ok")

    def queue_of(self, method: Method) -> str:
        """The queue that a method names; by default the one declared last. Raises: AmqpError."""
        name: str = method["queue"] or self._last_queue
        if not name:
            raise AmqpError(NOT_FOUND, "no previously declared queue", method.index)
        return name

    def _queue_declare(self, method: Method) -> Later:
        name: str = method["queue"]
        if name == REPLY_TO or (is_reply_name(name) and self.queues.replies.waiting(name) is not None):
            self._declared(method, name, 0, 0)  # no queue, but clients ask whether it is there
            return None
        if method["passive"]:
            name = self.queue_of(method)
            self._owner.rights.declare(self.queues.topic_name(name))
            ready, consumers = self.queues.counts(name, self.queues.topic(name, self._owner))
            self._last_queue = name
            self._declared(method, name, ready, consumers)
            return None
        if not name:
            name = f"amq.gen-{secrets.token_urlsafe(16)}"
        elif name.startswith("amq.") and name not in self.queues.topology.queues:
            raise AmqpError(ACCESS_REFUSED, f"queue name '{name}' contains reserved prefix 'amq.*'", method.index)
        return self._declare(method, name)

    async def _declare(self, method: Method, name: str) -> None:
        wanted = Queue(
            name, self.queues.topic_name(name), method["durable"], method["exclusive"], method["auto_delete"],
            arguments.checked(method["arguments"]),
        )  # fmt: skip
        self._owner.rights.declare(wanted.topic)
        if self.queues.is_undeclared(wanted) and not self._owner.rights.is_admin:
            counts = self.queues.counts(name, self.queues.topic(name, self._owner))
        else:
            about = {"topic": wanted.topic}
            is_new, counts = await self.queues.declare(wanted, self._owner, partial(self._owner.rights.administer, about))
            if is_new:
                self._owner.audit(method.name, about)
        self._last_queue = name
        self._declared(method, name, *counts)

    def _declared(self, method: Method, name: str, ready: int, consumers: int) -> None:
        if not method["no_wait"]:
            self._reply("queue.declare-ok", queue=name, message_count=min(ready, COUNT_MAX), consumer_count=consumers)

    def _queue_delete(self, method: Method) -> Later:
        name = self.queue_of(method)
        about = {"topic": self.queues.topic_name(name)}
        self._owner.rights.administer(about)
        return self._delete(method, name, about)

    async def _delete(self, method: Method, name: str, about: Mapping[str, str]) -> None:
        count = await self.queues.delete(name, self._owner, if_unused=method["if_unused"], if_empty=method["if_empty"])
        if count is not None:
            self._owner.audit(method.name, about)
        if not method["no_wait"]:
            self._reply("queue.delete-ok", message_count=min(count or 0, COUNT_MAX))

    def _queue_purge(self, method: Method) -> Later:
        name = self.queue_of(method)
        about = {"topic": self.queues.topic_name(name)}
        self._owner.rights.administer(about)
        return self._purge(method, name, about)

    async def _purge(self, method: Method, name: str, about: Mapping[str, str]) -> None:
        count = await self.queues.purge(name, self._owner)
        self._owner.audit(method.name, about)
        if not method["no_wait"]:
            self._reply("queue.purge-ok", message_count=min(count, COUNT_MAX))
