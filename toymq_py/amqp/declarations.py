"""Declarations of one AMQP channel: its methods on exchanges, queues and bindings.

Contract: amqp.md, "Model". Each gives a coroutine where it waits for the disk. Belongs to the event loop.
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
"""What a count of messages can say."""


class Owner(Protocol):
    """The connection, which owns its exclusive queues."""

    @property
    def rights(self) -> OpenRights:
        """What its token may do."""

    def audit(self, action: str, about: Mapping[str, str], result: str = ...) -> None:
        """Something was made, changed, removed or refused."""


class Declarations:
    """The methods of the classes exchange and queue."""

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
        if name in self.queues.topology.exchanges:
            self._owner.rights.declare_exchange(name)
        work = self.queues.declare_exchange(wanted, lambda: self._may_make(method, {"exchange": name}))
        return self._then(work, method)

    def _exchange_delete(self, method: Method) -> Later:
        self._owner.rights.administer(method["exchange"])
        work = self.queues.delete_exchange(method["exchange"], if_unused=method["if_unused"])
        return self._then(work, method, {"exchange": method["exchange"]})

    def _bind_exchange(self, method: Method, *, bind: bool) -> Later:
        source, target = method["source"], method["destination"]
        self._owner.rights.administer(target)
        binding = Binding(source, target, True, method["routing_key"], arguments.checked(method["arguments"]))
        return self._change_binding(binding, method, {"exchange": target, "source": source}, bind=bind)

    def _bind_queue(self, method: Method, *, bind: bool) -> Later:
        queue = self.queue_of(method)
        routing_key = method["routing_key"] or ("" if method["queue"] else queue)
        topic = self.queues.topic_name(queue)
        self._owner.rights.administer(topic)
        binding = Binding(method["exchange"], queue, False, routing_key, arguments.checked(method["arguments"]))
        return self._change_binding(binding, method, {"topic": topic, "source": method["exchange"]}, bind=bind)

    async def _change_binding(self, binding: Binding, method: Method, about: Mapping[str, str], *, bind: bool) -> None:
        """A consumer binds anew at each start: only what changes something has a line in the audit trail."""
        if await (self.queues.bind(binding, self._owner) if bind else self.queues.unbind(binding)):
            self._owner.audit(method.name, {**about, "routing_key": binding.routing_key})
        if not method.get("no_wait"):
            self._reply(f"{method.name}-ok")

    async def _then(self, work: Coroutine[Any, Any, None], method: Method, about: Mapping[str, str] | None = None) -> None:
        await work
        if about is not None:
            self._owner.audit(method.name, about)
        if not method["no_wait"]:
            self._reply(f"{method.name}-ok")

    def queue_of(self, method: Method) -> str:
        """The queue that a method names; none is the one that was declared last. Raises: AmqpError."""
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
            counts = await self.queues.declare(wanted, self._owner, lambda: self._may_make(method, {"topic": wanted.topic}))
        self._last_queue = name
        self._declared(method, name, *counts)

    def _may_make(self, method: Method, about: Mapping[str, str]) -> None:
        """Raises: AmqpError (ACCESS_REFUSED)."""
        self._owner.rights.administer(next(iter(about.values())))
        self._owner.audit(method.name, about)

    def _declared(self, method: Method, name: str, ready: int, consumers: int) -> None:
        if not method["no_wait"]:
            self._reply("queue.declare-ok", queue=name, message_count=min(ready, COUNT_MAX), consumer_count=consumers)

    def _queue_delete(self, method: Method) -> Later:
        name = self.queue_of(method)
        self._owner.rights.administer(self.queues.topic_name(name))
        return self._delete(method, name)

    async def _delete(self, method: Method, name: str) -> None:
        topic = self.queues.topic_name(name)
        count = await self.queues.delete(name, self._owner, if_unused=method["if_unused"], if_empty=method["if_empty"])
        self._owner.audit(method.name, {"topic": topic})
        if not method["no_wait"]:
            self._reply("queue.delete-ok", message_count=min(count, COUNT_MAX))

    def _queue_purge(self, method: Method) -> Later:
        name = self.queue_of(method)
        self._owner.rights.administer(self.queues.topic_name(name))
        return self._purge(method, name)

    async def _purge(self, method: Method, name: str) -> None:
        count = await self.queues.purge(name, self._owner)
        self._owner.audit(method.name, {"topic": self.queues.topic_name(name)})
        if not method["no_wait"]:
            self._reply("queue.purge-ok", message_count=min(count, COUNT_MAX))
