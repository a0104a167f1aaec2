"""PULL: messages of one topic, without a subscription. Those of a pattern: ``pattern_poll.py``.

Contract: protocol.md, "PULL"; delivery.md. Knows no wire and no sessions. Belongs to the event loop.
"""

from collections import OrderedDict
from collections.abc import Callable
from sys import maxsize

from toymq_py.consumer_options import Mode
from toymq_py.errors import NoSuchConsumer, NoSuchTopic
from toymq_py.subscription.pattern_subscription import MultiSubscription
from toymq_py.topic import Delivery, Subscription

MESSAGES_PER_POLL = 4096
"""Most messages that one ``Poll.take`` returns, whatever it asks for: a hundred thousand of one byte would hold the loop."""
RECORD_COST_BYTES = 64
"""The bytes for which a message counts towards ``max_bytes`` of ``Poll.take`` beside its payload, about: its header line."""


class Taking:
    """One ``take`` over several topics' subscriptions (parts), bounded in messages and bytes; it takes one message at least."""

    __slots__ = ("_max_bytes", "_max_count")

    def __init__(self, max_count: int, max_bytes: int) -> None:
        self._max_count = min(max_count, MESSAGES_PER_POLL)
        self._max_bytes = max_bytes

    def run(
        self,
        takeable: OrderedDict[Subscription, None],
        next_takeable: Callable[[], Subscription],
        take: Callable[[Subscription, int, int], Delivery | None],
        *,
        shared: bool,
        several: bool = False,
    ) -> list[Delivery]:
        """Take from each part in turn; parts that may have more stay in ``takeable``.

        Args:
            take: takes at most a number of messages and of bytes from a part.
            shared: other polls take through the same parts, so one piece is taken from each.
            several: the parts are of several topics, so a message whose leases have ended several times without an answer is
                taken alone (ADR 0265).

        Raises: OSError when a log cannot be read, and nothing was taken.
        """
        taken: list[Delivery] = []
        again: list[Subscription] = []
        max_count, max_bytes = self._max_count, self._max_bytes
        while takeable and max_count > 0 and max_bytes > 0:
            part = next_takeable()
            try:
                delivery = take(part, max_count, max_bytes)
            except OSError:
                takeable[part] = None
                if not taken:
                    takeable.update(dict.fromkeys(again))
                    raise
                break
            if delivery is None:
                continue
            is_suspect = several and part.channel.consumer.is_suspect(delivery.first_id)
            if taken and (is_suspect or delivery.size > max_bytes):
                delivery.unsend()  # one message, which comes alone the next time
                again.append(part)
                break
            taken.append(delivery)
            max_count = 0 if is_suspect else max_count - len(delivery)
            max_bytes -= delivery.size + RECORD_COST_BYTES * len(delivery)
            if shared or part.channel.takers > 1:
                again.append(part)
            else:
                takeable[part] = None
        takeable.update(dict.fromkeys(again))
        return taken


class Poll(MultiSubscription):
    """One PULL of one topic: leases messages without a session, or is woken when there are some.

    Its leases end by their deadline alone, never with the poll; ``close`` gives nothing back. Messages that were taken and did
    not reach the client can be given back uncounted with ``delivery.unsend()``. Made by ``Broker.poll``, whose caller must
    close it; take nothing before ``when_registered`` has passed None.
    """

    __slots__ = ("_wake",)

    def __init__(
        self, name: str, consumer_name: str, *, visibility_s: float | None, wake: Callable[[], bool], mode: Mode | None
    ) -> None:
        MultiSubscription.__init__(
            self, name, consumer_name, pattern=None, mode=None, window=maxsize, visibility_s=visibility_s, start=None
        )
        self.poll_mode = mode
        self._wake = wake

    def on_messages(self) -> bool:
        return self._wake()

    def on_part_ended(self, part: Subscription, code: str) -> None:
        wake = self._wake
        if code in ("SHUTTING_DOWN", "MOVED"):
            self.close()
        elif part.channel.context.topic_deleted:
            self.problem = NoSuchTopic(f"{self.name} was deleted")
        else:
            self.problem = NoSuchConsumer(f"{self.consumer_name} on {self.name} was deleted")
        wake()

    def end(self, code: str) -> None:
        if not self.closed:
            wake = self._wake
            self.close()
            wake()

    def close(self) -> None:
        MultiSubscription.close(self)
        self._wake = lambda: False  # else it and its PULL would be a cycle

    def take(self, max_count: int, max_bytes: int) -> list[Delivery]:
        """Lease what is ready now, redeliveries first, the topics in turn: at most ``max_count`` messages of ``max_bytes``, but
        one message at least. [] when there is nothing: ``wake`` is called when that may have changed. Sessions and polls of one
        consumer share what is ready: each takes its share at most.

        Raises: OSError when a log cannot be read, and nothing was taken; NoSuchTopic, NoSuchConsumer when it was deleted
            meanwhile.
        """
        if self.problem is not None:
            raise self.problem
        taking = Taking(max_count, max_bytes)
        return taking.run(self._takeable, self._next_takeable, Subscription.take_some, shared=False)
