"""Checks everything that ends or delays a message other than an ack: delays, expiry, limits, PURGE, DELETE, dead letters,
redrives.

Contract: delivery.md. Pure, a part of ``checker``: decides which losses are allowed. Since the broker's wall clock jumps, every
check assumes the value that favours the broker, of all that the clock had between two events.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from toymq_chaos.history import OF_A_LIFE, Event
from toymq_chaos.leases import SLACK_NS, covers
from toymq_chaos.verdict import Verdict
from toymq_py.names import DEAD_LETTERS, is_dead_letters

MS = 1_000_000
REDRIVE_KEY = "redrive:"

Attempts = Mapping[tuple[str, str], Sequence[Event]]
"""The publishes by topic and key."""


class _Seen(NamedTuple):
    """A delivery, and the earliest time at which the broker may have sent it."""

    event: Event
    not_before_ns: int


def _connection(event: Event) -> str:
    """The name of an event's connection, without the suffix that ``views`` adds."""
    return event.process.partition(OF_A_LIFE)[0]


class Fates:
    """Checks what becomes of messages: give it the events in order, then call ``judge``."""

    def __init__(self) -> None:
        self._declared: dict[str, list[str]] = defaultdict(list)  # topics and patterns by what may happen
        self._ahead: list[tuple[int, int]] = [(0, 0)]  # time, and how far the broker's clock was ahead from then on
        self._timed: list[_Seen] = []  # deliveries of messages that may be delayed, or expire
        self._letters: dict[tuple[str, str, int], Event] = {}  # by topic, consumer and id of origin
        self._twice: list[tuple[Event, Event]] = []  # letters of the same message
        self._letter_ids: dict[tuple[str, int], Event] = {}  # by their own topic and id
        self._later_letters: dict[tuple[str, str, str], int] = {}  # by topic, consumer and the message's key: the last one's id
        self._returns: dict[tuple[str, int], list[Event]] = defaultdict(list)  # redriven records by dead letter
        self._given_up: set[tuple[str, str, int]] = set()  # NACKs with dead
        self._most: dict[str, Event] = {}  # by topic: the delivery with the most attempts
        self._settings: dict[tuple[str, str], list[Event]] = defaultdict(list)  # possible values by topic and name
        self._max_attempts: dict[str, list[int]] = defaultdict(list)
        self._removals: dict[str, list[Event]] = defaultdict(list)  # PURGE and DELETE by topic
        self._seen_keys: dict[tuple[str, str, str], _Seen] = {}  # by topic, consumer and key: the last delivery
        self._dropped: dict[str, int] = defaultdict(int)
        self._held_keys: dict[tuple[str, str, str, int], str] = {}  # by connection, topic that may be deleted, consumer and id
        self._namesakes: dict[tuple[str, str, int], list[tuple[str, Event]]] = defaultdict(list)  # their acks, and of which key

    # -- what is known

    def declare(self, event: Event) -> None:
        assert event.topic is not None
        self._declared[event.note or ""].append(event.topic)

    def may(self, what: str, topic: str) -> bool:
        """Whether the history declares that ``what`` ("drop" or "delete") may happen to messages of a topic."""
        return any(covers(name, topic) for name in self._declared[what])

    def clock(self, event: Event) -> None:
        if event.ahead_ns is not None:
            self._ahead.append((event.t_ns, event.ahead_ns))

    def configured(self, event: Event, verdict: Verdict) -> None:
        """Note a "config" (a setting was changed) or "settings" (settings were read). One client does both, so it must read
        what it set last."""
        assert event.topic is not None
        name = (event.topic, event.key or "")
        known = self._settings[name]
        if event.op == "settings":
            set_once = bool(known) and known[0].result == "ok"  # otherwise it may have its first value
            if set_once and all(one.note != event.note for one in known):
                verdict.broken("a setting is not what it was set to", *known, event)
            return
        if event.result == "ok":
            known.clear()
        if event.result != "err":
            known.append(event)
            if event.key == "max_attempts":
                self._max_attempts[event.topic].append(int(event.note or 0))

    def removed(self, event: Event) -> None:
        """Note a "purge" or "delete" command."""
        assert event.topic is not None
        if event.result != "err":
            self._removals[event.topic].append(event)

    def dropped(self, event: Event) -> None:
        self._dropped[event.topic or ""] += event.count or 0

    def given_back(self, event: Event) -> None:
        """Note a "nack" that sends its message to the dead letters."""
        if event.dead and event.result != "err":
            self._given_up.add((event.topic or "", event.consumer or "", event.id or 0))

    def delivered(self, event: Event, not_before_ns: int, verdict: Verdict) -> None:
        assert event.topic is not None
        assert event.consumer is not None
        assert event.id is not None
        assert event.key is not None
        most = self._most.setdefault(event.topic, event)
        if (event.attempt or 0) > (most.attempt or 0):
            self._most[event.topic] = event
        seen = _Seen(event, not_before_ns)
        self._timed.append(seen)
        self._seen_keys[event.topic, event.consumer, event.key] = seen
        if self.may("delete", event.topic):
            self._held_keys[_connection(event), event.topic, event.consumer, event.id or 0] = event.key
        if is_dead_letters(event.topic):
            self._letter(event, verdict)
        elif event.key.startswith(REDRIVE_KEY):
            self._return(event, verdict)

    def acked(self, event: Event) -> None:
        """Note an ack in a topic that may be deleted, with the key of the message that its connection had received under that
        id."""
        message = (event.topic or "", event.consumer or "", event.id or 0)
        key = self._held_keys.get((_connection(event), *message))
        if key is not None:
            self._namesakes[message].append((key, event))

    def _letter(self, event: Event, verdict: Verdict) -> None:
        """Note a delivered dead letter. Whether a second one of the same message is allowed is judged at the end: dedupe keys
        are removed with their records."""
        assert event.topic is not None
        assert event.id is not None
        if event.origin_id is None or event.origin_consumer is None:
            verdict.broken("a dead letter does not say where it comes from", event)
            return
        topic = event.topic.removesuffix(DEAD_LETTERS)
        origin = (topic, event.origin_consumer, event.origin_id)
        known = self._letters.setdefault(origin, event)
        if known.id != event.id:
            self._twice.append((known, event))
        self._letter_ids[event.topic, event.id] = event
        if event.note:
            key = (topic, event.origin_consumer, event.note)
            self._later_letters[key] = max(event.id, self._later_letters.get(key, 0))

    def _return(self, event: Event, verdict: Verdict) -> None:
        if event.consumer != event.origin_consumer:
            verdict.broken("a dead letter came back to another consumer", event)
        self._returns[self._letter_of(event)].append(event)

    def _letter_of(self, event: Event) -> tuple[str, int]:
        _, topic, number, *_ = (event.key or "").split(":")
        return topic, int(number)

    # -- what is excused

    def ours(self, event: Event) -> bool:
        """Whether the broker itself wrote the delivered record (a dead letter or redriven message), not a publisher."""
        return is_dead_letters(event.topic or "") or (event.key or "").startswith(REDRIVE_KEY)

    def is_letter(self, topic: str, consumer: str, msg_id: int) -> bool:
        return (topic, consumer, msg_id) in self._letters

    def seen(self, topic: str, consumer: str, key: str) -> bool:
        return (topic, consumer, key) in self._seen_keys

    def acked_as_another(self, published: Event, consumer: str) -> bool:
        """Whether an ack that was meant for a message of the deleted topic may have acked the new topic's message with the same
        id (ADR 0212)."""
        if published.id is None:
            return False
        acks = self._namesakes.get((published.topic or "", consumer, published.id), ())
        return any(key != published.key and (published.sent_ns or 0) <= ack.t_ns for key, ack in acks)

    def may_be_gone(self, published: Event, end_ns: int, life_of: Mapping[str, int]) -> bool:
        """Whether a published message may be gone without an ack by ``end_ns``: expired, dropped or removed."""
        assert published.topic is not None
        if published.ttl_ms is not None and self.may_be_older(published, published.ttl_ms, end_ns):
            return True
        return self.may("drop", published.topic) or self.may_be_removed(published, life_of)

    def may_be_removed(self, published: Event, life_of: Mapping[str, int]) -> bool:
        """Whether PURGE or DELETE may have removed a message. A command without an answer may have taken effect at any time
        until its broker ended."""
        return any(
            (published.sent_ns or 0) <= removal.t_ns
            or (removal.result == "unknown" and life_of[published.process] <= life_of[removal.process])
            for removal in self._removals.get(published.topic or "", ())
        )

    def may_be_older(self, published: Event, age_ms: int, end_ns: int) -> bool:
        """Whether, by the broker's clock, a published message may have reached an age by ``end_ns``."""
        return self._wall(published, end_ns) >= age_ms * MS - SLACK_NS

    def _wall(self, since: Event, until_ns: int) -> int:
        """The longest time that may have passed on the broker's clock from ``since`` to ``until_ns``."""
        low, high = self._between(since.sent_ns or since.t_ns, until_ns)
        return until_ns + high - (since.sent_ns or since.t_ns) - low

    def _between(self, since_ns: int, until_ns: int) -> tuple[int, int]:
        """The least and the most that the broker's clock was ahead within a span of time."""
        first = bisect_right(self._ahead, since_ns, key=lambda one: one[0]) - 1
        behind = bisect_right(self._ahead, until_ns, key=lambda one: one[0])
        values = [ahead for _, ahead in self._ahead[max(first, 0) : max(behind, first + 1)]]
        return min(values), max(values)

    # -- at the end

    def judge(
        self,
        attempts: Attempts,
        verdict: Verdict,
        *,
        drained: bool,
        digest_of: Callable[[str, int], str | None],
        gone: Callable[[Event], bool],
        removed: Callable[[Event], bool],
    ) -> None:
        """Check everything at the end, when all events are known.

        Args:
            digest_of: returns the digest of the payload with an id in a topic, None if unknown.
            gone: whether retention may have removed the record of a delivery; it removes dead letters, once acked by all, like
                messages.
            removed: like ``gone``, but acks are no reason. It is asked about second copies: a move is durable at its source
                before acks can remove the copy, so acks do not excuse a second copy.
        """
        for seen in self._timed:
            published = attempts.get((seen.event.topic or "", seen.event.key or ""))
            if published:
                self._too_early_or_late(seen, published, verdict)
        for topic, most in self._most.items():
            limits = self._max_attempts[topic]
            if limits and all(limits) and (most.attempt or 0) > max(limits):
                verdict.broken("a message was delivered more often than max_attempts", most)
        for (topic, consumer, msg_id), letter in self._letters.items():
            digest = digest_of(topic, msg_id)
            if digest is not None and digest != letter.digest:
                verdict.broken("a dead letter was changed", letter)
            few = letter.count is not None and letter.count < min(self._max_attempts[topic], default=0)
            if few and (topic, consumer, msg_id) not in self._given_up:
                verdict.broken("a message became a dead letter before its last attempt", letter)
        for known, letter in self._twice:
            if not removed(known):
                verdict.broken("a message became two dead letters", known, letter)
        if drained:
            self._judge_returns(verdict, gone, removed)

    def _too_early_or_late(self, seen: _Seen, published: Sequence[Event], verdict: Verdict) -> None:
        event, first = seen.event, published[0]
        if first.delay_ms:
            sent_ns = min(each.sent_ns or each.t_ns for each in published)
            low, high = self._between(sent_ns, event.t_ns)
            if event.t_ns + high - sent_ns - low + SLACK_NS < first.delay_ms * MS:
                verdict.broken("a message came before its time", first, event)
        if first.ttl_ms and (answer := next((each for each in published if each.result in ("ok", "dup")), None)):
            low, _ = self._between(answer.t_ns, event.t_ns)
            _, high = self._between(min(each.sent_ns or each.t_ns for each in published), answer.t_ns)
            if seen.not_before_ns + low > answer.t_ns + high + first.ttl_ms * MS + SLACK_NS:
                verdict.broken("a message came after it had expired", answer, event)

    def _judge_returns(
        self, verdict: Verdict, gone: Callable[[Event], bool], removed: Callable[[Event], bool]
    ) -> None:
        for name, returned in self._returns.items():
            letter = self._letter_ids.get(name)
            if letter is None:
                verdict.unexpected += 1
                verdict.broken("a dead letter came back that was never delivered", returned[0])
            elif any(one.id != returned[0].id for one in returned) and not removed(returned[0]):
                verdict.broken("a dead letter came back twice", returned[0], returned[-1])
            elif letter.digest != returned[0].digest:
                verdict.broken("a dead letter was changed on its way back", letter, returned[0])
        for name, letter in self._letter_ids.items():
            again = (name[0].removesuffix(DEAD_LETTERS), letter.origin_consumer or "", letter.note or "")
            # A redriven record may be a dead letter again before a consumer has read it.
            if not self._returns.get(name) and self._later_letters.get(again, 0) <= name[1] and not gone(letter):
                verdict.lost += 1
                verdict.broken("a dead letter never came back", letter)

    def judge_removed(self, published: Iterable[Event], consumers: Iterable[tuple[str, str]], verdict: Verdict) -> None:
        """Check that messages published before a PURGE or DELETE was sent are not delivered after its answer."""
        names = list(consumers)
        for event in published:
            removals = [each for each in self._removals.get(event.topic or "", ()) if each.result == "ok"]
            for name, consumer in names if removals else ():
                seen = self._seen_keys.get((event.topic or "", consumer, event.key or ""))
                if seen is None or not covers(name, event.topic or ""):
                    continue
                for removal in removals:
                    if event.t_ns <= (removal.sent_ns or 0) and seen.not_before_ns > removal.t_ns:
                        verdict.broken("a message came that had been removed", event, removal, seen.event)

    def judge_dropped(self, missing: Mapping[str, int], verdict: Verdict, evidence: Event) -> None:
        """Check that no more messages of a topic are missing than the broker counted as dropped, if the history has such
        counts."""
        for topic, count in missing.items() if self._dropped else ():
            if count > self._dropped[topic]:
                verdict.broken(f"{count} messages of {topic} are missing, and {self._dropped[topic]} were counted", evidence)
