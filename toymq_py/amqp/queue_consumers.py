"""The consumers of one queue, and which of them may take messages.

Contract: amqp.md, "Model" (basic.consume, x-priority, x-single-active-consumer); RabbitMQ, "Consumer Priorities", "Single
Active Consumer". Knows no topic. Belongs to the event loop.
"""

from typing import Protocol

from toymq_py.amqp.errors import ACCESS_REFUSED, AmqpError


class QueueConsumer(Protocol):
    """What a queue needs of a consumer."""

    order: "QueueConsumers | None"
    """The order of the consumers, where they have different priorities: it is asked before a message is taken."""

    @property
    def is_exclusive(self) -> bool: ...

    @property
    def priority(self) -> int: ...

    def activate(self) -> bool:
        """Let the consumer take messages from now on. Returns: False when its topic is gone; the client was told."""

    def wake(self) -> bool:
        """Tell the consumer that messages are ready. Returns: whether it takes some soon; False without credit, or if its
        client does not read."""

    def drop(self) -> None:
        """Drop the consumer: its queue is being deleted."""

    def tell(self) -> None:
        """Tell the client that the queue is gone."""


class QueueConsumers:
    """All consumers of a queue, in the order in which they came.

    With different priorities, a consumer takes only while none of a higher priority has credit, and is woken when none has any
    left. A queue with a single active consumer gives messages to no other; when that one leaves, the consumer with the highest
    priority becomes active, among equals the one that came first.
    """

    def __init__(self, name: str, vhost: str, *, single_active: bool) -> None:
        self._name = name
        self._vhost = vhost
        self._single_active = single_active
        self._active: QueueConsumer | None = None
        self._all: dict[QueueConsumer, None] = {}
        self._waiting: dict[QueueConsumer, None] = {}
        self._by_priority: list[QueueConsumer] = []  # the highest first

    def __len__(self) -> int:
        return len(self._all)

    def add(self, consumer: QueueConsumer) -> bool:
        """Add a consumer. Returns: whether it may take messages now; otherwise it is activated in its turn.

        Raises: AmqpError (ACCESS_REFUSED) when the queue has an exclusive consumer, or when this one is exclusive and the queue
        has others or a single active one.
        """
        alone = consumer.is_exclusive or any(other.is_exclusive for other in self._all)
        if (self._all and alone) or (self._single_active and consumer.is_exclusive):
            raise AmqpError(ACCESS_REFUSED, f"queue '{self._name}' in vhost '{self._vhost}' in exclusive use")
        self._all[consumer] = None
        if self._single_active:
            if self._active is not None:
                return False
            self._active = consumer
        else:
            self._rank()
        return True

    def remove(self, consumer: QueueConsumer) -> bool:
        """Remove a consumer; another one may follow, or take messages in its place. Returns: whether it was there."""
        if consumer not in self._all:
            return False
        del self._all[consumer]
        self._waiting.pop(consumer, None)
        consumer.order = None
        if consumer is self._active:
            self._active = None
            self._follow()
        elif not self._single_active:
            self._rank()
            self.pass_on()
        return True

    def take_all(self) -> list[QueueConsumer]:
        """Remove and return all consumers, as the queue is being deleted."""
        found = list(self._all)
        self._all.clear()
        self._waiting.clear()
        self._by_priority.clear()
        for consumer in found:
            consumer.order = None
        return found

    def _follow(self) -> None:
        while self._active is None and self._all:
            self._active = max(self._all, key=lambda consumer: consumer.priority)
            if not self._active.activate():
                del self._all[self._active]
                self._active = None

    def _rank(self) -> None:
        ranked = len({consumer.priority for consumer in self._all}) > 1
        for consumer in self._all:
            consumer.order = self if ranked else None
        self._by_priority = sorted(self._all, key=lambda consumer: -consumer.priority) if ranked else []

    def wake_one(self) -> bool:
        """Wake one consumer that can take messages. Returns: whether there was one."""
        return any(consumer.wake() for consumer in self._all)

    def must_wait(self, consumer: QueueConsumer) -> bool:
        """Whether a consumer with a higher priority takes the ready messages. It is woken; ``pass_on`` wakes this one."""
        for other in self._by_priority:
            if other.priority <= consumer.priority:
                break
            if other.wake():
                self._waiting[consumer] = None
                return True
        return False

    def pass_on(self) -> None:
        """Wake the consumers that ``must_wait`` held back: one of a higher priority has no credit left, or is gone."""
        waiting, self._waiting = self._waiting, {}
        for consumer in waiting:
            consumer.wake()
