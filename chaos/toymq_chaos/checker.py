"""Whether a history keeps the promises. Contract: reliability.md, in Jepsen's words.

Pure: events in, a verdict out. What it may assume: events are in the order of ``t_ns``; consumers begin at the first message;
the history ends with "drained" when consumers were given the time to see everything.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from toymq_chaos.history import Event

ACK_WINDOW_NS = 100_000_000
"""Acks of the last 100 ms before a kill may be lost (delivery.md); a flush that had not finished may take longer."""

Message = tuple[str, int]
"""Topic and id."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken, and the fewest events that show it."""

    promise: str
    evidence: tuple[Event, ...]

    def __str__(self) -> str:
        return "\n  ".join([self.promise, *map(str, self.evidence)])


@dataclass(slots=True)
class Verdict:
    """Counts in Jepsen's words. ``violations`` empty: every promise was kept."""

    attempted: int = 0
    acknowledged: int = 0
    recovered: int = 0
    """The outcome was unknown to the publisher, and the message is there."""
    lost: int = 0
    unexpected: int = 0
    delivered: int = 0
    acked: int = 0
    duplicated: Counter[str] = field(default_factory=Counter)
    """Deliveries beyond the first of a message to a consumer, by cause."""
    kills: int = 0
    violations: list[Violation] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.violations


class Checker:
    """Fed with events in order; ``verdict`` at the end."""

    def __init__(self, *, ack_window_ns: int = ACK_WINDOW_NS) -> None:
        """``ack_window_ns``: how long before a kill an ack may have been answered and still be lost."""
        self._ack_window_ns = ack_window_ns
        self._verdict = Verdict()
        self._attempts: dict[tuple[str, str], list[Event]] = defaultdict(list)  # by topic and key
        self._ids: dict[tuple[str, str], Event] = {}  # topic and key to the first answer with an id
        self._accepted: dict[Message, Event] = {}
        self._owner: dict[Message, tuple[str, str]] = {}  # id to topic and key
        self._consumers: dict[tuple[str, str], Event] = {}  # topic and consumer
        self._deliveries: dict[tuple[str, str, int], list[Event]] = defaultdict(list)
        self._acks: dict[tuple[str, str, int], Event] = {}
        self._kills: list[int] = []
        self._last_published: dict[tuple[str, str], Event] = {}
        self._last_fresh: dict[tuple[str, str, str], Event] = {}
        self._drained = False

    def feed(self, event: Event) -> None:
        match event.op:
            case "pub":
                self._published(event)
            case "deliver":
                self._delivered(event)
            case "ack":
                self._acked(event)
            case "sub":
                if event.topic is not None and event.consumer is not None and event.result == "ok":
                    self._consumers.setdefault((event.topic, event.consumer), event)
            case "kill":
                self._verdict.kills += 1
                self._kills.append(event.t_ns)
            case "drained":
                self._drained = True
            case _:
                pass

    def _broken(self, promise: str, *evidence: Event) -> None:
        self._verdict.violations.append(Violation(promise, evidence))

    def _published(self, event: Event) -> None:
        assert event.topic is not None
        assert event.key is not None
        known = self._attempts[event.topic, event.key]
        known.append(event)
        if len(known) == 1:
            self._verdict.attempted += 1
        if event.result not in ("ok", "dup") or event.id is None:
            return
        first = self._ids.setdefault((event.topic, event.key), event)
        if first is event:
            self._verdict.acknowledged += 1
        elif first.id != event.id:
            self._broken("one key was given two ids", first, event)
        owner = self._owner.setdefault((event.topic, event.id), (event.topic, event.key))
        if owner != (event.topic, event.key):
            self._broken("one id was given to two keys", self._attempts[owner][-1], event)
        self._accepted.setdefault((event.topic, event.id), event)
        if event.result == "ok":
            last = self._last_published.get((event.process, event.topic))
            if last is not None and last.id is not None and event.id <= last.id:
                self._broken("ids of one connection do not ascend", last, event)
            self._last_published[event.process, event.topic] = event

    def _delivered(self, event: Event) -> None:
        assert event.topic is not None
        assert event.consumer is not None
        assert event.id is not None
        self._verdict.delivered += 1
        message = (event.topic, event.consumer, event.id)
        before = self._deliveries[message]
        if before:
            self._again(message, before[-1], event)
        before.append(event)
        if event.attempt == 1:
            session = (event.process, event.topic, event.consumer)
            last = self._last_fresh.get(session)
            if last is not None and last.id is not None and event.id <= last.id:
                self._broken("first deliveries of one connection do not ascend", last, event)
            self._last_fresh[session] = event

    def _again(self, message: tuple[str, str, int], before: Event, event: Event) -> None:
        """A redelivery: why was it allowed?"""
        assert event.attempt is not None
        assert before.attempt is not None
        ack = self._acks.get(message)
        killed = [kill for kill in self._kills if kill >= before.t_ns]
        if ack is not None and ack.sync:
            self._broken("an acked message was delivered again although its ack was on the disk", before, ack, event)
        elif ack is not None:
            if any(ack.t_ns <= kill <= ack.t_ns + self._ack_window_ns for kill in self._kills):
                del self._acks[message]
                self._verdict.duplicated["its ack was lost in a kill window"] += 1
            else:
                self._broken("an acked message was delivered again", before, ack, event)
        elif killed:
            self._verdict.duplicated["the broker was killed before it was acked"] += 1
        else:
            self._verdict.duplicated["it was not acked: visibility, nack or a lost connection"] += 1
        if event.attempt <= before.attempt and not killed:
            self._broken("attempts fell", before, event)

    def _acked(self, event: Event) -> None:
        if event.result == "ok" and event.topic is not None and event.consumer is not None and event.id is not None:
            message = (event.topic, event.consumer, event.id)
            if message not in self._acks:
                self._verdict.acked += 1
            self._acks[message] = event

    def verdict(self) -> Verdict:
        """The counts and everything that was broken."""
        verdict = self._verdict
        appeared = {(topic, seen[0].key or ""): seen[0] for (topic, _, _), seen in self._deliveries.items()}
        for owner, attempts in self._attempts.items():
            shown = appeared.get(owner)
            if shown is None or owner in self._ids:
                continue
            if all(attempt.result == "err" for attempt in attempts):
                verdict.unexpected += 1
                self._broken("a refused message was delivered", attempts[-1], shown)
            else:
                verdict.recovered += 1
        for seen in self._deliveries.values():
            self._compare(seen)
        if self._drained:
            self._find_lost()
        return verdict

    def _compare(self, seen: list[Event]) -> None:
        """Deliveries of one message to one consumer, against what was published; only now are all publishes known."""
        for event in seen:
            assert event.topic is not None
            assert event.id is not None
            key = (event.topic, event.key or "")
            attempts = self._attempts.get(key)
            if attempts is None:
                self._verdict.unexpected += 1
                self._broken("a message came that nobody published", event)
            elif all(attempt.digest != event.digest for attempt in attempts):
                self._broken("a message was changed", attempts[0], event)
            elif self._owner.setdefault((event.topic, event.id), key) != key:
                self._broken("one id came with two keys", seen[0], event)
            elif self._ids.setdefault(key, event).id != event.id:
                self._broken("one key was given two ids", self._ids[key], event)

    def _find_lost(self) -> None:
        for (topic, msg_id), accepted in self._accepted.items():
            for (of, consumer), subscribed in self._consumers.items():
                owed = of == topic and accepted.t_ns >= subscribed.t_ns  # before that, retention may have taken it
                if owed and (topic, consumer, msg_id) not in self._deliveries:
                    self._verdict.lost += 1
                    self._broken(f"an acknowledged message never came to {consumer}", accepted, subscribed)


def check(events: Iterable[Event], *, ack_window_ns: int = ACK_WINDOW_NS) -> Verdict:
    """The verdict on a whole history."""
    checker = Checker(ack_window_ns=ack_window_ns)
    for event in events:
        checker.feed(event)
    return checker.verdict()
