"""Exchanges, queues and bindings of a running broker: their topics, their file, their consumers.

Contract: amqp.md, "Model"; ADR 0123. A queue is a topic with a shared consumer named ``amqp``. One object for all connections;
belongs to the event loop.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from toymq_py.amqp.arguments import is_limited, topic_settings
from toymq_py.amqp.errors import (
    ACCESS_REFUSED,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    PRECONDITION_FAILED,
    RESOURCE_LOCKED,
    AmqpError,
    inequivalent,
)
from toymq_py.amqp.names import topic_of
from toymq_py.amqp.properties import priority_of
from toymq_py.amqp.queue_consumers import QueueConsumer, QueueConsumers
from toymq_py.amqp.replies import Replies
from toymq_py.amqp.streams import check_stream, is_stream
from toymq_py.amqp.topology import Binding, Exchange, Queue, Topology
from toymq_py.amqp.topology_file import TopologyFile
from toymq_py.broker import Broker
from toymq_py.broker_waits import made, stored
from toymq_py.config.amqp_definitions import DEFAULT_VHOST
from toymq_py.errors import NoSuchTopic, RequestError, ShuttingDown
from toymq_py.topic import Delivery, Subscription, Topic
from toymq_py.units import DURATION_MS_MAX

logger = logging.getLogger("toymq_py.amqp")

CONSUMER = "amqp"
"""The consumer of a topic that stands for its queue."""

LEASE_S = DURATION_MS_MAX / 1000
"""The time of a lease: in effect until the connection ends."""
RETRY_S, RETRIES_PER_S = 1.0, 50


class ExpiringQueue(Protocol):
    """A queue whose messages go to an exchange when they expire (``expiry.Expiry``)."""

    def is_over(self, delivery: Delivery, row: int) -> bool:
        """Whether a message has expired."""

    def published(self, ttl_ms: int) -> None:
        """Note that a message with its own expiration is stored."""

    def refused(self, payload: bytes, block: bytes) -> None:
        """Note that the queue is full and a message was not stored."""

    def look(self) -> None:
        """Expire the messages whose time is over."""


class ExpiringQueues(Protocol):
    """What ``Queues`` needs of ``expiry.Expiries``."""

    def watch(self, queue: Queue) -> None: ...

    def forget(self, queue: Queue) -> None: ...

    def left(self, name: str) -> None: ...

    def of_topic(self, topic: str) -> ExpiringQueue | None: ...

    def close(self) -> None: ...


class NoExpiries:
    """``ExpiringQueues`` of a broker that serves no AMQP: nothing expires."""

    def watch(self, queue: Queue) -> None: ...

    def forget(self, queue: Queue) -> None: ...

    def left(self, name: str) -> None: ...

    def of_topic(self, topic: str) -> ExpiringQueue | None:
        return None

    def close(self) -> None: ...


class Queues:
    """The topology of a virtual host, with the topics behind it."""

    def __init__(
        self, broker: Broker, loop: asyncio.AbstractEventLoop, file: TopologyFile, vhost: str = DEFAULT_VHOST
    ) -> None:
        self.broker = broker
        self.vhost = vhost
        self.topology = Topology(vhost)
        self._file = file
        file.sources[vhost] = lambda: self.topology.to_json()
        self.expiries: ExpiringQueues = NoExpiries()
        self.replies = Replies()
        self._next_retry: dict[str, float] = {}
        self._loop = loop
        self._consumers: dict[str, QueueConsumers] = {}
        self._owners: dict[str, object] = {}  # of exclusive queues
        self._expiries: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def load(self, topology: Topology) -> None:
        """Load the stored declarations, and remove those that do not outlive a restart. Raises: OSError."""
        self.topology = topology
        for queue in list(topology.queues.values()):
            if queue.is_temporary:
                await self._delete_topic(queue.topic)
            if queue.is_temporary or not self.broker.has(queue.topic):
                topology.queue_removed(queue.name)
            else:
                self.broker.topic(queue.topic).context.is_stream = is_stream(queue.arguments)
                self.used(queue.name)
                self.expiries.watch(queue)

    # -- names

    def topic(self, name: str, owner: object) -> Topic:
        """The topic of a queue: a declared one, or a topic that another protocol made. Raises: AmqpError, RequestError."""
        self._check_owner(name, owner)
        try:
            return self.broker.topic(self.topic_name(name))
        except NoSuchTopic:
            self._forget(name)
            raise AmqpError(NOT_FOUND, f"no queue '{name}' in vhost '{self.vhost}'") from None

    def topic_name(self, name: str) -> str:
        """The name of a queue's topic, whether the topic exists or not."""
        queue = self.topology.queues.get(name)
        return topic_of(name, self.vhost) if queue is None else queue.topic

    def dead_letter_target(self, name: str, routing_key: str) -> tuple[str, str] | None:
        """Exchange and routing key of a queue's dead letters; None without a dead-letter exchange."""
        queue = self.topology.queues.get(name)
        exchange = None if queue is None else queue.arguments.get("x-dead-letter-exchange")
        if queue is None or exchange is None:
            return None
        return exchange, queue.arguments.get("x-dead-letter-routing-key", routing_key)

    def retry_in_s(self, name: str) -> float:
        """Seconds until the retry of a message whose dead letter was not stored. A queue has at most ``RETRIES_PER_S`` of
        them, however many messages wait, so that a full target does not use up a core."""
        now = self._loop.time()
        at = self._next_retry[name] = max(now + RETRY_S, self._next_retry.get(name, 0.0) + 1 / RETRIES_PER_S)
        return at - now

    def _check_owner(self, name: str, owner: object) -> None:
        if name in self._owners and self._owners[name] is not owner:
            text = f"cannot obtain exclusive access to locked queue '{name}' in vhost '{self.vhost}'"
            raise AmqpError(RESOURCE_LOCKED, f"{text}: it is of another connection")

    def counts(self, name: str, topic: Topic) -> tuple[int, int]:
        """The numbers of waiting messages and of consumers. A message that is delayed by its exchange does not count yet; one
        whose dead letter could not be stored still does."""
        channel = topic.channels.get(CONSUMER)
        if channel is None:
            ready = max(topic.messages() - len(topic.delays.schedule.ids), 0)
        else:
            ready = channel.consumer.waiting(topic.next_id)
        return ready, len(self._consumers.get(name, ()))

    def subscribe(
        self, name: str, topic: Topic, *, window: int, wake: Callable[[Subscription], bool],
        ended: Callable[[Subscription, str], None],
    ) -> Subscription:  # fmt: skip
        """Attach to the consumer of a queue's topic, by priority where the queue has some. Raises: RequestError, OSError."""
        subscription, _ = topic.subscribe(
            CONSUMER, mode="shared", window=window, visibility_s=LEASE_S, wake=wake, ended=ended
        )
        queue, channel = self.topology.queues.get(name), subscription.channel
        channel.instead = None  # basic.get cannot wait until its attempt is stored (ADR 0249)
        most = None if queue is None else queue.arguments.get("x-max-priority")
        if most and channel.consumer.priority_of is None:
            channel.prioritize(partial(priority_of, most))
        return subscription

    def is_limited(self, topic: str) -> bool:
        """Whether the queue of a topic was declared with a maximum length."""
        queue = self.topology.queues.get(topic)  # an ordinary name is itself
        if queue is None or queue.topic != topic:
            queue = next((each for each in self.topology.queues.values() if each.topic == topic), None)
        return queue is not None and is_limited(queue.arguments)

    def is_stream(self, name: str) -> bool:
        queue = self.topology.queues.get(name)
        return queue is not None and is_stream(queue.arguments)

    def is_undeclared(self, wanted: Queue) -> bool:
        """Whether a declaration only names an existing topic of another protocol, so that nothing need be stored. A topic is
        durable, so the queue is, too, even when declared as transient."""
        arguments = dict(wanted.arguments)
        as_a_topic = arguments.pop("x-queue-type", "classic") in ("classic", "quorum") and not arguments
        is_there = wanted.name not in self.topology.queues and self.broker.has(wanted.topic)
        return is_there and as_a_topic and not wanted.goes_by_itself

    def refuse_stream(self, name: str, method: str) -> None:
        """Refuse a method that streams do not have. Raises: AmqpError (NOT_IMPLEMENTED)."""
        if self.is_stream(name):
            raise AmqpError(NOT_IMPLEMENTED, f"{method} not supported by stream queues queue '{name}' in vhost '{self.vhost}'")

    # -- queues

    async def declare(
        self, wanted: Queue, owner: object, may_make: Callable[[], None], *, defined: bool = False
    ) -> tuple[bool, tuple[int, int]]:
        """Declare a queue, or confirm one that is alike.

        Args:
            owner: the connection, which owns the queue if that is exclusive.
            may_make: called before a new queue is made, to check the right to it. Raises: AmqpError.
            defined: the queue comes from a definitions file. Its topic, if it exists, keeps its settings; the caller saves.

        Returns: whether the queue is new, and its numbers of messages and consumers. Raises: AmqpError, RequestError.
        """
        self._check_owner(wanted.name, owner)
        settings = topic_settings(wanted.arguments)
        if streams := is_stream(wanted.arguments):
            check_stream(wanted, self.vhost)
        present = self.topology.queues.get(wanted.name)
        if present is not None and self.broker.has(present.topic):
            _check_alike(present, wanted, self.vhost)
            self.used(wanted.name)
            return False, self.counts(wanted.name, self.broker.topic(present.topic))
        is_new = not self.broker.has(wanted.topic)
        if not is_new and wanted.goes_by_itself and not (defined and not self.broker.topic(wanted.topic).messages()):
            text = f"topic {wanted.topic} is there and would be deleted with queue '{wanted.name}': declare it neither"
            raise AmqpError(RESOURCE_LOCKED, f"{text} exclusive nor auto-delete nor with x-expires, or take another name")
        may_make()
        self.topology.queue_added(wanted)
        if wanted.exclusive:
            self._owners[wanted.name] = owner
        try:
            if wanted.is_temporary:
                await self.save()  # first: a restart finds what it has to remove
            if is_new or (settings and not defined):
                await stored(lambda done: self.broker.create(wanted.topic, settings, done))
            topic = await made(partial(self.broker.topic_or_new, wanted.topic))
            topic.context.is_stream = streams
            if not streams:
                await self._make_consumer(topic)
            if not defined:
                await self.save()
        except BaseException:
            if self.topology.queues.get(wanted.name) is wanted:
                self._forget(wanted.name)
            raise
        self.used(wanted.name)
        self.expiries.watch(wanted)
        return True, self.counts(wanted.name, topic)

    async def _make_consumer(self, topic: Topic) -> None:
        if CONSUMER in topic.channels:
            return
        poll, registration = topic.subscribe(
            CONSUMER, mode=None, window=1, visibility_s=None, wake=_never, ended=lambda subscription, code: None
        )
        await stored(partial(topic.when_registered, poll, registration))
        poll.close()

    async def delete(self, name: str, owner: object, *, if_unused: bool = False, if_empty: bool = False) -> int | None:
        """Delete a queue with its messages. Returns: how many were ready; None if there was no such queue. Raises: AmqpError,
        RequestError."""
        self._check_owner(name, owner)
        topic_name = self.topic_name(name)
        if not self.broker.has(topic_name):
            was_there = name in self.topology.queues
            self._forget(name)
            return 0 if was_there else None
        ready, consumers = self.counts(name, self.broker.topic(topic_name))
        if if_unused and consumers:
            raise AmqpError(PRECONDITION_FAILED, f"queue '{name}' in vhost '{self.vhost}' in use")
        if if_empty and ready:
            raise AmqpError(PRECONDITION_FAILED, f"queue '{name}' in vhost '{self.vhost}' not empty")
        self._forget(name)
        gone = [] if (its := self._consumers.pop(name, None)) is None else its.take_all()
        for consumer in gone:
            consumer.drop()
        await self._delete_topic(topic_name)
        await self.save()
        for consumer in gone:
            self._loop.call_soon(consumer.tell)  # behind the answer to the client that deletes
        return ready

    async def _delete_topic(self, topic: str) -> None:
        if not self.broker.has(topic):
            return
        over: asyncio.Future[OSError | None] = self._loop.create_future()
        self.broker.delete(topic, lambda count, error: None if over.done() else over.set_result(error))
        error = await over
        if error is not None:
            raise error

    async def purge(self, name: str, owner: object) -> int:
        """Remove the messages of a queue. Returns: how many were ready. Raises: AmqpError, RequestError, OSError."""
        topic = self.topic(name, owner)
        self.refuse_stream(name, "queue.purge")
        ready, _ = self.counts(name, topic)
        over: asyncio.Future[OSError | RequestError | None] = self._loop.create_future()
        topic.purge(lambda _, error: None if over.done() else over.set_result(error))
        error = await over
        if error is not None:
            raise error
        return ready

    def _forget(self, name: str) -> None:
        """Remove a queue from the topology, but not its topic. Idempotent."""
        if (queue := self.topology.queues.get(name)) is not None:
            self.expiries.forget(queue)
            self.topology.queue_removed(name)
            self._file.changed()
        self._owners.pop(name, None)
        self._next_retry.pop(name, None)
        timer = self._expiries.pop(name, None)
        if timer is not None:
            timer.cancel()

    # -- exchanges and bindings

    async def declare_exchange(self, wanted: Exchange, may_make: Callable[[], None]) -> bool:
        """Declare an exchange. Returns: whether it is new. Raises: AmqpError, RequestError, OSError."""
        if wanted.name not in self.topology.exchanges:
            may_make()
        is_new = self.topology.declare_exchange(wanted)
        if is_new and wanted.durable:
            await self.save()
        return is_new

    async def delete_exchange(self, name: str, *, if_unused: bool) -> bool:
        """Delete an exchange. Returns: whether it existed. Raises: AmqpError, RequestError, OSError."""
        was_there = self.topology.delete_exchange(name, if_unused=if_unused)
        if was_there:
            await self.save()
        return was_there

    async def bind(self, binding: Binding, owner: object, *, saved: bool = True) -> bool:
        """Add a binding. ``saved`` False: the caller calls ``save``. Returns: whether it is new.

        Raises: AmqpError, RequestError, OSError."""
        if not binding.to_exchange:
            topic = self.topic(binding.target, owner)
            if binding.target not in self.topology.queues:  # made by another protocol: now it is a queue, too
                self.topology.queue_added(Queue(binding.target, topic.name))
        made = self.topology.bind(binding)
        if made and saved:
            await self.save()
        return made

    async def unbind(self, binding: Binding) -> bool:
        """Remove a binding. Returns: whether it existed. Raises: RequestError, OSError."""
        was_there = self.topology.unbind(binding)
        if was_there:
            await self.save()
        return was_there

    async def save(self) -> None:
        """Put changed declarations on stable storage (``TopologyFile.save``). Raises: RequestError."""
        await self._file.save()

    # -- routing

    def targets(
        self, exchange: str, routing_key: str, headers: Mapping[str, Any], *, internal: bool = False
    ) -> list[str]:
        """Names of the topics that a message goes to. ``internal``: the broker itself publishes. Raises: AmqpError."""
        found = self.topology.exchange(exchange)
        if found.internal and not internal:
            raise AmqpError(ACCESS_REFUSED, f"cannot publish to internal exchange '{exchange}' in vhost '{self.vhost}'")
        topics = map(self.topic_name, self.topology.route(exchange, routing_key, headers))
        return [topic for topic in topics if self.broker.has(topic)]

    # -- consumers

    def wake_consumer(self, name: str) -> bool:
        """Wake a consumer of a queue to take ready messages. Returns: whether one takes some soon; False if all lack credit."""
        its = self._consumers.get(name)
        return its is not None and its.wake_one()

    def attach(self, name: str, consumer: QueueConsumer) -> bool:
        """Attach a consumer. Returns: whether it takes now. Raises: AmqpError (ACCESS_REFUSED), as ``QueueConsumers.add``."""
        its = self._consumers.get(name)
        if its is None:
            queue = self.topology.queues.get(name)
            single_active = queue is not None and bool(queue.arguments.get("x-single-active-consumer"))
            its = QueueConsumers(name, self.vhost, single_active=single_active)
        takes = its.add(consumer)
        self._consumers[name] = its
        timer = self._expiries.pop(name, None)
        if timer is not None:
            timer.cancel()
        return takes

    def detach(self, name: str, consumer: QueueConsumer) -> None:
        """Detach a consumer; an auto-delete queue goes with its last one. Idempotent."""
        its = self._consumers.get(name)
        if its is None or not its.remove(consumer) or its:
            return
        del self._consumers[name]
        queue = self.topology.queues.get(name)
        if queue is not None and queue.auto_delete:
            self._begin(self._remove(name))
        else:
            self.used(name)
            self.expiries.left(name)

    def owner_gone(self, owner: object) -> None:
        """Delete the exclusive queues of a connection that has ended."""
        for name in [name for name, its in self._owners.items() if its is owner]:
            self._begin(self._remove(name))

    async def _remove(self, name: str) -> None:
        try:
            await self.delete(name, self._owners.get(name))
        except ShuttingDown:
            pass  # the next start removes it
        except (AmqpError, RequestError, OSError) as error:
            logger.warning("queue %s is not removed: %s", name, error)

    def used(self, name: str) -> None:
        """Restart the ``x-expires`` timer of a queue without consumers: it was declared, read by basic.get, or left."""
        queue = self.topology.queues.get(name)
        expires_ms = None if queue is None else queue.arguments.get("x-expires")
        if (timer := self._expiries.pop(name, None)) is not None:
            timer.cancel()
        if expires_ms is not None and not self._consumers.get(name):
            self._expiries[name] = self._loop.call_later(expires_ms / 1000, self._expired, name)

    def _expired(self, name: str) -> None:
        self._expiries.pop(name, None)
        if not self._consumers.get(name) and not self.broker.shutting_down:
            self._begin(self._remove(name))

    def _begin(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def settle(self) -> None:
        """Wait until removals of queues that have begun are done."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))

    def close(self) -> None:
        """Stop all timers."""
        self.expiries.close()
        for timer in self._expiries.values():
            timer.cancel()
        self._expiries.clear()


def _check_alike(present: Queue, wanted: Queue, vhost: str) -> None:
    """Check that a declaration equals the existing one. Raises: AmqpError (PRECONDITION_FAILED) with what differs."""
    for what in ("durable", "auto_delete", "exclusive"):
        given, has = getattr(wanted, what), getattr(present, what)
        if given != has:
            raise inequivalent(what, f"queue '{wanted.name}' in vhost '{vhost}'", given, has)
    for name in sorted(present.arguments.keys() | wanted.arguments.keys()):
        given, has = wanted.arguments.get(name), present.arguments.get(name)
        if given != has:
            raise inequivalent(name, f"queue '{wanted.name}' in vhost '{vhost}'", given, has)


def _never(subscription: Subscription) -> bool:
    return False
