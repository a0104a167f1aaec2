"""Who takes from a topic's consumers: how sessions and polls are attached, woken and let go of.

Contract: delivery.md, "mode", "Session gone". Knows no wire, no sessions beyond the ``Subscription`` that they hold. Belongs to
the event loop.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from toymq_py.consumer import Consumer, Lessee
from toymq_py.errors import ModeConflict
from toymq_py.model import Mode, Start
from toymq_py.topic.subscription import Attached, Registration, Subscription

if TYPE_CHECKING:
    from toymq_py.topic.topic import Topic


class Attachments:
    """Of one topic, by consumer. A consumer that nobody ever subscribed to has none."""

    def __init__(self, topic: "Topic") -> None:
        self._topic = topic
        self._attached: dict[str, Attached] = {}
        self._takers = 0

    @property
    def sessions(self) -> int:
        """How many, on all consumers of the topic."""
        return sum(len(attached.sessions) for attached in self._attached.values())

    def of(self, name: str) -> Attached | None:
        """Who takes from a consumer; None when nobody ever did."""
        return self._attached.get(name)

    def subscribe(
        self,
        name: str,
        start: Start | None = None,
        *,
        mode: Mode | None = "exclusive",
        window: int,
        visibility_s: float | None,
        wake: Callable[[Subscription], bool],
        ended: Callable[[Subscription, str], None],
        lessee: Lessee | None = None,
    ) -> tuple[Subscription, Registration]:
        """Attach a session, or a poll (``mode`` None). An exclusive one takes over from an older one at once.

        Args:
            start: where the consumer begins if it is new; by default at the first id.
            visibility_s: how long its leases last; the topic's time-out when None.
            window, wake, ended, lessee: see ``Subscription``.

        Returns: the subscription, and what the caller owes the disk before it answers.

        Raises: ModeConflict (sessions of the other mode are attached), TooManyConsumers, OSError.
        """
        topic = self._topic
        attached = self._attached.get(name)
        if mode is not None and attached is not None and attached.sessions and attached.mode != mode:
            raise ModeConflict(f"{name} on {topic.name} is consumed with mode={attached.mode}")
        consumer = topic.consumers.get(name)
        registration = Registration.KNOWN
        if consumer is None:
            at = topic.start_of_new(start)
            registration = Registration.NEW if at == topic.log.first_id else Registration.NEW_AHEAD
            consumer = topic.make_consumer(name, at)
        if attached is None:
            new_here = registration is not Registration.KNOWN
            attached = self._attached[name] = Attached("shared" if mode is None and new_here else "exclusive")
        if mode == "exclusive":
            self.end_sessions(name, "TAKEN_OVER")
        subscription = Subscription(
            topic, consumer, attached,
            mode=mode, window=window, visibility_s=visibility_s, wake=wake, ended=ended, lessee=lessee,
        )  # fmt: skip
        if mode is None:
            attached.polls[subscription] = None
        else:
            attached.sessions[subscription] = None
            attached.mode = mode
        self._takers += 1
        topic.log.tail.enable(True)
        return subscription, registration

    def detach(self, subscription: Subscription) -> None:
        """The subscription is closed: its leases end, attempts kept, but for those of a poll."""
        attached, consumer = subscription.attached, subscription.consumer
        attached.idle.pop(subscription, None)
        self._takers -= 1
        self._topic.log.tail.enable(self._takers > 0)
        if subscription.mode is None:
            del attached.polls[subscription]
        else:
            del attached.sessions[subscription]
            consumer.release(subscription.lessee)
        self._topic.look_again(consumer)

    def wake_all(self, messages: int) -> None:
        """So many were committed, for every consumer."""
        for attached in self._attached.values():
            if attached.idle:
                attached.wake(messages)

    def wake(self, consumer: Consumer) -> None:
        """There may be something to take from this one."""
        attached = self._attached.get(consumer.name)
        if attached is not None and attached.idle:
            attached.wake(self._topic.available(consumer))

    # -- ending

    def end_sessions(self, name: str, code: str) -> None:
        """The sessions of a consumer are told a CLOSED code; polls go on."""
        attached = self._attached.get(name)
        for subscription in list(attached.sessions) if attached is not None else ():
            self._end(subscription, code)

    def forget(self, name: str, code: str) -> None:
        """The consumer is gone: sessions and polls end with a CLOSED code."""
        attached = self._attached.pop(name, None)
        if attached is not None:
            self._end_all(attached, code)

    def end_all(self, code: str) -> None:
        """All sessions and polls end with a CLOSED code; the consumers stay."""
        for attached in self._attached.values():
            self._end_all(attached, code)

    def _end_all(self, attached: Attached, code: str) -> None:
        for subscription in (*attached.sessions, *attached.polls):
            self._end(subscription, code)

    def _end(self, subscription: Subscription, code: str) -> None:
        if not subscription.closed:
            subscription.closed = True
            self.detach(subscription)
            subscription.ended(subscription, code)
