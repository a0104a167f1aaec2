"""Checks redeliveries: whether each had a reason, and whether none was overdue. Contract: delivery.md, "Visibility timeout".

Pure, a part of ``checker``, for redeliveries within one life of a broker (from its start to its end).

A history knows when a client read a delivery, not when the broker sent it, which may be much earlier. So every check gives the
broker the benefit of the doubt. A broker writes deliveries and replies to a connection in order: a delivery was not sent before
its message was published, nor before the client sent the last command whose reply precedes the delivery. And if a client sends
command B after the reply to command A, then at the reply to B the broker's event loop has made a whole pass since A: it has
delivered all messages that were due at A.

If several connections share a consumer, the order of reading proves nothing: a delivery that one connection read late may be
older than the ack on another. So overdue messages are checked only for consumers with one connection at a time.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from toymq_chaos.history import Event
from toymq_chaos.verdict import Verdict
from toymq_py.names import TopicPattern, is_pattern

SLACK_NS = 10_000_000
"""How late a lease may end (delivery.md), and the time between two readings of a clock."""
MS = 1_000_000
BUFFERED = "buffered"
"""The note of a "sub" whose client buffers deliveries: one recorded after a reply may have arrived before it."""

Message = tuple[str, str, int]
"""Topic, consumer and id."""


@lru_cache(maxsize=1024)
def covers(name: str, topic: str) -> bool:
    """Whether a name, which may be a pattern, covers a topic."""
    return TopicPattern(name).matches(topic) if is_pattern(name) else name == topic


@dataclass(slots=True)
class _Subscription:
    """One consumer on one connection, subscribed to a topic or a pattern."""

    topic: str
    consumer: str
    buffered: bool = False
    pulled: bool = False
    """Whether its messages were pulled, so that their leases do not end with the connection."""
    asked_ns: int = 0
    """When the latest answered command was sent."""
    asked: tuple[int, int] = (0, 0)
    """When a command was sent and answered; the next one was sent after that."""
    passed_ns: int = 0
    """The time up to which all that was due is done."""
    waiting: dict[int, Event] = field(default_factory=dict)
    """Unsettled deliveries by id, in order."""


class Leases:
    """Checks redeliveries: give it the events of consumers in order, then call ``judge``."""

    def __init__(self) -> None:
        self._visibility_ns: int | None = None
        self._subscriptions: dict[str, _Subscription] = {}  # by connection
        self._shared: set[tuple[str, str]] = set()  # declared: topic or pattern, and consumer
        self._first: dict[tuple[str, str], str] = {}  # by topic and consumer: the first connection that may have subscribed
        self._gone: set[str] = set()
        self._uncertain: set[str] = set()  # that may have lost what they pulled
        self._lived_ns: dict[str, int] = defaultdict(int)  # by connection: when it last was not lost
        self._sent: dict[Message, int] = {}  # earliest time that the latest delivery was sent
        self._answers: dict[Message, list[Event]] = defaultdict(list)
        self._again: list[tuple[Event, int, Event, int]] = []  # deliveries in turn, each with its earliest time of sending
        self._overdue: list[tuple[Event, Event]] = []  # a delivery, and one that came when the first was due again

    def started(self, event: Event) -> None:
        """Note the visibility timeout of a started broker; if the event has none, lease times are not checked."""
        self._visibility_ns = None if event.visibility_ms is None else event.visibility_ms * MS

    def disconnected(self, process: str, *, with_leases: bool = False) -> None:
        """Note the end of a connection. ``with_leases``: messages that it pulled may be lost, perhaps before the client read
        them."""
        self._gone.add(process)
        if with_leases:
            self._uncertain.add(process)

    def share(self, topic: str, consumer: str) -> None:
        """Note that several connections share the consumer."""
        self._shared.add((topic, consumer))

    def shared(self, event: Event) -> bool:
        """Whether several connections share the event's consumer."""
        return any(consumer == event.consumer and covers(topic, event.topic or "") for topic, consumer in self._shared)

    def buffered(self, event: Event) -> bool:
        """Whether the event's client buffers deliveries before it hands them out."""
        subscription = self._subscriptions.get(event.process)
        return subscription is not None and subscription.buffered

    def may_end(self, since_ns: int, until_ns: int) -> bool:
        """Whether a lease that begins at ``since_ns`` may have ended by ``until_ns``."""
        return self._visibility_ns is not None and until_ns - since_ns >= self._visibility_ns

    def not_before_ns(self, event: Event) -> int:
        """The earliest time at which the broker may have sent a delivery, the latest one of its connection."""
        subscription = self._subscriptions.get(event.process)
        return 0 if subscription is None else subscription.asked_ns

    def asked(self, event: Event) -> None:
        """Note a "sub", "pull", "ack" or "nack" command."""
        assert event.topic is not None
        assert event.consumer is not None
        name = event.process
        if event.op == "sub" and event.result != "err":
            self._first.setdefault((event.topic, event.consumer), event.process)
            if event.result == "ok":
                self._subscriptions[name] = _Subscription(event.topic, event.consumer, event.note == BUFFERED)
                self._subscriptions[name].asked_ns = event.sent_ns or 0
        if event.op == "pull" and event.result != "err":
            pull = self._subscriptions.setdefault(name, _Subscription(event.topic, event.consumer, pulled=True))
            pull.asked_ns = max(pull.asked_ns, event.sent_ns or 0)
        if event.result != "unknown":
            self._lived_ns[name] = max(self._lived_ns[name], event.sent_ns or 0)
        subscription = self._subscriptions.get(name)
        timed = subscription is not None and not subscription.buffered
        if subscription is not None and timed and event.result != "unknown" and event.sent_ns is not None:
            subscription.asked_ns = max(subscription.asked_ns, event.sent_ns)
            if event.sent_ns >= subscription.asked[1]:
                subscription.passed_ns = subscription.asked[0]
                subscription.asked = (event.sent_ns, event.t_ns)
        if event.id is not None:
            self._answers[event.topic, event.consumer, event.id].append(event)
            if subscription is not None:
                subscription.waiting.pop(event.id, None)

    def delivered(self, event: Event, verdict: Verdict) -> None:
        """Note a delivery, whether the first of its message or not; the caller has called ``first`` or ``again`` before."""
        assert event.topic is not None
        assert event.consumer is not None
        assert event.id is not None
        subscription = self._subscriptions.get(event.process)
        known = subscription is not None and subscription.consumer == event.consumer and covers(subscription.topic, event.topic)
        if subscription is None or not known:
            verdict.broken("a message came to a consumer that had not subscribed there", event)
            return
        self._sent[event.topic, event.consumer, event.id] = subscription.asked_ns
        if self.shared(event):
            return
        subscription.waiting.pop(event.id, None)
        if event.attempt == 1 and self._visibility_ns is not None:
            due_ns = subscription.passed_ns - self._visibility_ns - 2 * SLACK_NS
            for msg_id, before in list(subscription.waiting.items()):
                if before.t_ns > due_ns:
                    break
                del subscription.waiting[msg_id]
                self._overdue.append((before, event))
        subscription.waiting[event.id] = event

    def first(self, event: Event, verdict: Verdict) -> None:
        """Note the first recorded delivery of a message. The broker may have sent it before: over a connection that was lost,
        or to a client that dropped the buffered delivery for a later one."""
        first = self._first.get((event.topic or "", event.consumer or ""))
        if event.attempt != 1 and first == event.process and not self.shared(event) and not self.buffered(event):
            verdict.broken("a first delivery was not attempt 1", event)

    def again(self, before: Event, event: Event, verdict: Verdict) -> None:
        """Note a redelivery of an unacked message in the same life of the broker."""
        assert event.attempt is not None
        assert before.attempt is not None
        leased = self._subscriptions.get(before.process)
        if before.process != event.process and before.process in self._gone and not (leased and leased.pulled):
            verdict.duplicated["its connection was lost"] += 1
            return
        uncertain = before.process in self._uncertain or event.process in self._uncertain
        if before.process != event.process and (event.attempt < before.attempt or uncertain):
            verdict.duplicated["it was read late"] += 1
            return
        left_out = before.process == event.process and event.attempt > before.attempt + 1
        if left_out and not self.shared(event) and not self.buffered(event):
            verdict.broken("attempts left out a number on one connection", before, event)
        self._again.append((before, self._sent.get(_message(before), 0), event, self.not_before_ns(event)))

    def judge(
        self,
        published_ns: Callable[[Event], int],
        gone: Callable[[Event], bool],
        delayed: Callable[[Event], bool],
        verdict: Verdict,
    ) -> None:
        """Check all redeliveries at the end, when every reply is known.

        Args:
            published_ns: returns when the message of a delivery was sent to the broker; 0 if unknown.
            gone: whether a message may have expired, been removed or become a dead letter instead of becoming ready again.
            delayed: whether a message was published with a delay, and so may rightly be delivered before an overdue one.
        """
        for before, sent_ns, event, event_sent_ns in self._again:
            nacks = (answer for answer in self._answers[_message(event)] if answer.op == "nack" and answer.result != "err")
            # A nack answered before the delivery was for an earlier one. But a delivery that was read late may have been sent
            # before that, and another connection's nack gave it back unread. One without an answer may be on its way for long
            # after its connection was lost, from one worker to another.
            if any(
                (
                    nack.t_ns >= (before.t_ns if nack.process == before.process else sent_ns)
                    or (nack.result == "unknown" and nack.process != before.process)
                )
                and (nack.sent_ns or 0) <= event.t_ns
                for nack in nacks
            ):
                verdict.duplicated["it was given back: nack"] += 1
                continue
            leased = self._subscriptions.get(before.process)
            lost = before.process != event.process and self._lived_ns[before.process] < event.t_ns
            if lost and self.shared(event) and not (leased and leased.pulled):  # a sleeping client notices later
                verdict.duplicated["its connection was lost"] += 1
                continue
            after_ns = event.t_ns - max(sent_ns, published_ns(before))
            if self._visibility_ns is None:
                verdict.duplicated["no reason was recorded"] += 1
            elif after_ns + SLACK_NS >= self._visibility_ns:
                verdict.duplicated["its visibility timeout was over"] += 1
            elif (
                before.process != event.process
                and self.shared(event)
                and before.t_ns - max(event_sent_ns, published_ns(event)) + SLACK_NS >= self._visibility_ns
            ):
                verdict.duplicated["it was read late"] += 1  # it was the first of the two, and its lease ended unread
            else:
                verdict.broken("a message came again before its visibility timeout, without a nack", before, event)
        for before, event in self._overdue:
            answers = self._answers[_message(before)]
            answered = any(answer.t_ns >= before.t_ns and (answer.sent_ns or 0) <= event.t_ns for answer in answers)
            if not answered and not gone(before) and not delayed(event):
                verdict.broken("a message did not come again after its visibility timeout, a later one did", before, event)


def _message(event: Event) -> Message:
    return (event.topic or "", event.consumer or "", event.id or 0)
