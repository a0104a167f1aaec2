"""Checks a history against the delivery guarantees. Contract: reliability.md.

Pure: events in, a verdict out. Assumes: events are in the order of ``t_ns``; a "kill" or "stop" comes after all events of the
life that it ends, and before the next "start"; consumers begin at the first message; the history ends with "drained" when
consumers had the time to see everything.

A "life" is one run of the broker, from "start" to "kill" or "stop". After a kill is recorded, clients may still read what the
killed broker had sent. So the life that an event belongs to follows from the "connect" of its connection, not from its time.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from toymq_chaos.fates import Fates
from toymq_chaos.history import Event
from toymq_chaos.key_order import KeyOrder
from toymq_chaos.leases import Leases, covers
from toymq_chaos.verdict import Verdict

ACK_WINDOW_NS = 100_000_000
"""Acks of the last 100 ms before a kill may be lost (delivery.md); an unfinished flush may lose older ones."""

OF_EITHER = "of either worker"
"""The note of a "disconnect" that ``views`` add: messages that were pulled there may have been lost with their worker."""
POWER = "power"
"""The end of the note of a "kill" that lost unsynced data, as a power cut does."""

FREED_NS = 5_000_000_000
"""How long after a full disk was freed the broker may still act as on a full one: it looks ten times a second when it is not
stopped, and the harness stops it for less than this."""

Message = tuple[str, int]
"""Topic and id."""


class Checker:
    """Judges a history: give it all events in order, then call ``verdict``."""

    def __init__(self, *, ack_window_ns: int = ACK_WINDOW_NS, keys_end_with_acks: bool = False) -> None:
        """
        Args:
            ack_window_ns: an ack that was answered at most this long before a kill may be lost.
            keys_end_with_acks: acked messages were retained so briefly that their dedupe keys may be forgotten (delivery.md: a
                key of a message below the first retained id finds no duplicate).
        """
        self._ack_window_ns = ack_window_ns
        self._keys_end_with_acks = keys_end_with_acks
        self._verdict = Verdict()
        self._attempts: dict[tuple[str, str], list[Event]] = defaultdict(list)  # by topic and key
        self._ids: dict[tuple[str, str], list[Event]] = defaultdict(list)  # by topic and key: the first event with each id
        self._owner: dict[Message, Event] = {}  # the first event with the id
        self._renamed: list[tuple[Event, Event]] = []  # events with different ids of one key
        self._accepted: dict[Message, Event] = {}
        self._stored: dict[tuple[str, str], Event] = {}  # by topic and key: acknowledged, with an id that is not certain
        self._consumers: dict[tuple[str, str], Event] = {}  # topic and consumer
        self._deliveries: dict[tuple[str, str, int], list[Event]] = defaultdict(list)
        self._fleeting: list[Event] = []  # deliveries of topics that may be deleted, and then begin at id 0 again
        self._acks: dict[tuple[str, str, int], Event] = {}  # the one that guarantees most
        self._last_ack: dict[tuple[str, str, int], Event] = {}  # whatever its result
        self._acks_sent: dict[tuple[str, str, int], int] = {}
        self._ends: list[tuple[int, bool]] = []  # when each life of the broker ended, and whether it was killed
        self._power_cuts: list[int] = []
        self._excused: list[tuple[int, int]] = []  # frozen, or its disk full: no flush could end
        self._excuse_began: dict[str, int] = {}
        self._life_of: dict[str, int] = {}  # number of the broker's life by connection
        self._full: list[tuple[int, int]] = []  # when the disk was full, and the broker may have acted on it
        self._retain_acked_for_ms: int | None = None
        self._leases = Leases()
        self._fates = Fates()
        self._key_order = KeyOrder()
        self._falling: list[tuple[Event, Event, bool]] = []  # first deliveries of one connection that do not ascend; buffered
        self._greatest: dict[str, list[Event]] = defaultdict(list)  # by topic: publishes with an id above all before
        self._last_published: dict[tuple[str, str], Event] = {}
        self._last_fresh: dict[tuple[str, str, str], Event] = {}
        self._started = False
        self._drained: Event | None = None

    @property
    def missing(self) -> str | None:
        """The missing part of this history; None when it is complete."""
        if not self._started:
            return "it has no start: it is empty, or its beginning is missing"
        return None if self._drained is not None else 'it has no "drained": it was cut off, or the run did not come to its end'

    def feed(self, event: Event) -> None:
        self._life_of.setdefault(event.process, len(self._ends))
        match event.op:
            case "pub":
                self._published(event)
            case "deliver":
                self._delivered(event)
            case "ack":
                self._acked(event)
                self._fates.acked(event)
                self._key_order.acked(event)
                self._leases.asked(event)
            case "nack":
                self._leases.asked(event)
                self._fates.given_back(event)
            case "declare":
                if event.note in ("share", "keyed"):
                    self._leases.share(event.topic or "", event.consumer or "")
                    if event.note == "keyed":
                        self._key_order.declare(event.topic or "", event.consumer or "")
                else:
                    self._fates.declare(event)
            case "config" | "settings":
                self._fates.configured(event, self._verdict)
            case "purge" | "delete":
                self._fates.removed(event)
            case "dropped":
                self._fates.dropped(event)
            case "clock":
                self._fates.clock(event)
            case "sub" | "pull":
                self._leases.asked(event)
                if event.topic is not None and event.consumer is not None and event.result == "ok":
                    self._consumers.setdefault((event.topic, event.consumer), event)
            case "start":
                self._started = True
                self._retain_acked_for_ms = event.retain_acked_for_ms
                self._leases.started(event)
            case "disconnect":
                self._leases.disconnected(event.process, with_leases=event.note == OF_EITHER)
            case "kill":
                self._verdict.kills += 1
                self._ends.append((event.t_ns, True))
                if event.note is not None and event.note.endswith(POWER):
                    self._power_cuts.append(event.t_ns)
            case "stop":
                self._ends.append((event.t_ns, False))
            case "pause" | "full":
                self._excuse_began[event.op] = event.t_ns
            case "resume" | "free":
                began = self._excuse_began.pop({"resume": "pause", "free": "full"}[event.op], event.t_ns)
                self._excused.append((began, event.t_ns))
                if event.op == "free":
                    self._full.append((began, event.t_ns + FREED_NS))
            case "stalled":
                self._verdict.broken("a client of the product's own did not move after a start of the broker", event)
            case "drained":
                self._drained = event
            case _:
                pass

    def _published(self, event: Event) -> None:
        assert event.topic is not None
        assert event.key is not None
        known = self._attempts[event.topic, event.key]
        known.append(event)
        if len(known) == 1:
            self._verdict.attempted += 1
        if event.result not in ("ok", "dup"):
            return
        if event.id is None or (event.seq is not None and event.result == "dup") or self._fates.may("delete", event.topic):
            if (event.topic, event.key) not in self._stored:
                self._verdict.acknowledged += 1
            self._stored.setdefault((event.topic, event.key), event)
            return
        if (event.topic, event.id) not in self._accepted:
            self._accepted[event.topic, event.id] = event
            self._verdict.acknowledged += 1
        self._identify(event)
        self._key_order.stored(event)
        if event.result == "ok":
            last = self._last_published.get((event.process, event.topic))
            if last is not None and last.id is not None and event.id <= last.id:
                self._verdict.broken("ids of one connection do not ascend", last, event)
            self._last_published[event.process, event.topic] = event
            self._follows(event.topic, event.id, event)

    def _follows(self, topic: str, msg_id: int, event: Event) -> None:
        """Check that a new id is above all ids of the topic that were acknowledged before its publish was sent, on any
        connection and in any life."""
        greatest = self._greatest[topic]
        told = bisect_left(greatest, event.sent_ns or 0, key=lambda one: one.t_ns)
        if told and msg_id <= (greatest[told - 1].id or 0):
            self._verdict.broken("an id was given that is not above an acknowledged one", greatest[told - 1], event)
        if not greatest or msg_id > (greatest[-1].id or 0):
            greatest.append(event)

    def _delivered(self, event: Event) -> None:
        assert event.topic is not None
        assert event.consumer is not None
        assert event.id is not None
        self._verdict.delivered += 1
        self._key_order.delivered(event)
        self._fates.delivered(event, self._leases.not_before_ns(event), self._verdict)
        if self._fates.may("delete", event.topic):
            self._fleeting.append(event)
            self._leases.delivered(event, self._verdict)
            return
        self._identify(event)
        message = (event.topic, event.consumer, event.id)
        before = self._deliveries[message]
        if before and self._was_read_late(self._acks.get(message), event):
            self._verdict.duplicated["it was read late"] += 1
            self._leases.delivered(event, self._verdict)
            return
        if before:
            self._again(message, before[-1], event)
        else:
            self._leases.first(event, self._verdict)
        before.append(event)
        self._leases.delivered(event, self._verdict)
        if event.attempt is not None and event.attempt < 1:
            self._verdict.broken("an attempt was below 1", event)
        if len(before) == 1 and event.attempt == 1 and not self._leases.shared(event):  # an uncounted attempt comes as 1 again
            session = (event.process, event.topic, event.consumer)
            last = self._last_fresh.get(session)
            if last is not None and last.id is not None and event.id <= last.id:
                self._falling.append((last, event, self._leases.buffered(event)))
            else:
                self._last_fresh[session] = event

    def _identify(self, event: Event) -> None:
        """Check that each key has one id and each id one key, in publishes and deliveries alike."""
        assert event.topic is not None
        assert event.id is not None
        told = self._ids[event.topic, event.key or ""]
        if all(before.id != event.id for before in told):
            if told:
                self._renamed.append((told[-1], event))
            told.append(event)
        owner = self._owner.setdefault((event.topic, event.id), event)
        if owner.key != event.key:
            self._verdict.broken("one id was given to two keys", owner, event)

    def _may_be_gone(self, told: Event) -> bool:
        return self._may_be_forgotten(told, self._drained or told)

    def _may_be_removed(self, told: Event) -> bool:
        return self._may_be_forgotten(told, self._drained or told, by_acks=False)

    def _may_be_forgotten(self, told: Event, by: Event, *, by_acks: bool = True) -> bool:
        """Whether a message's record and dedupe key may be removed by the time of ``by``. ``by_acks``: also count removal
        because every consumer had sent an ack by then (an ack is recorded only when it is answered)."""
        topic = told.topic or ""
        attempts = self._attempts.get((topic, told.key or ""), [])
        removed = any(self._fates.may_be_removed(attempt, self._life_of) for attempt in attempts)
        if removed or self._fates.may("drop", topic):
            return True  # a hit below the first retained id does not count
        if any(attempt.seq is not None for attempt in attempts):
            # Records after a hole of a power cut do not prove a producer's lower sequences (ADR 0013).
            first_ns = min(attempt.sent_ns or attempt.t_ns for attempt in attempts)
            if any(first_ns <= cut_ns <= max(by.t_ns, told.t_ns) for cut_ns in self._power_cuts):
                return True
        # A redriven message counts as acked for all consumers but one; a dead letter has its own consumers. On a full disk
        # messages that all consumers acked are removed at once (storage.md), with their keys; otherwise by age. What expired
        # or became a dead letter counts as acked.
        by_ns = by.t_ns
        if not (by_acks and self._keys_end_with_acks) and not self._may_be_past_retention(told, attempts, by):
            last_full_ns = self._last_full_ns(by_ns)
            if last_full_ns is None:
                return False
            by_ns = last_full_ns
        consumers = [
            consumer for of, consumer in self._consumers
            if of == told.topic and (told.origin_id is not None or told.origin_consumer in (None, consumer))
        ]  # fmt: skip
        return all(
            self._acks_sent.get((topic, consumer, told.id or 0), by_ns + 1) <= by_ns
            or self._may_have_ended(replace(told, consumer=consumer), by_ns)
            for consumer in consumers
        )

    def _last_full_ns(self, by_ns: int) -> int | None:
        """The last moment up to ``by_ns`` at which the broker may still have acted as if its disk were full; None for never."""
        still = self._excuse_began.get("full", by_ns + 1)
        full = [*self._full, (still, by_ns)] if still <= by_ns else self._full
        return max((min(until_ns, by_ns) for since_ns, until_ns in full if since_ns <= by_ns), default=None)

    def _may_be_past_retention(self, told: Event, attempts: Sequence[Event], by: Event) -> bool:
        """Whether a published message may have been old enough for removal by retention. Not one that the broker itself wrote:
        that stays as long as it proves what was moved (ADR 0033)."""
        age_ms = self._retain_acked_for_ms
        stored = [attempt for attempt in attempts if attempt.result == "ok" and attempt.id == told.id]
        may_have_stored = stored or [attempt for attempt in attempts if attempt.result != "err"]
        return age_ms is not None and any(self._fates.may_be_older(each, age_ms, by.t_ns) for each in may_have_stored)

    def _again(self, message: tuple[str, str, int], before: Event, event: Event) -> None:
        """Find the reason that allowed a redelivery, or report a violation."""
        assert event.attempt is not None
        assert before.attempt is not None
        life, life_before = self._life_of[event.process], self._life_of[before.process]
        ack = self._acks.get(message)
        if ack is not None and ack.sync:
            self._verdict.broken("an acked message was delivered again although its ack was on the disk", before, ack, event)
        elif ack is not None:
            if self._may_be_lost(ack, life):
                del self._acks[message]
                self._verdict.duplicated["its ack was lost in a kill window"] += 1
            else:
                self._verdict.broken("an acked message was delivered again", before, ack, event)
        elif life > life_before:
            self._verdict.duplicated["the broker ended before it was acked"] += 1
        else:
            self._leases.again(before, event, self._verdict)
        late = self._leases.shared(event) and event.process != before.process  # another connection may have read first
        if event.attempt < before.attempt and not late and not any(killed for _, killed in self._ends[life_before:life]):
            self._verdict.broken("attempts fell", before, event)

    def _was_read_late(self, ack: Event | None, event: Event) -> bool:
        """Whether a delivery may have been sent before the ack of its message: over another connection of a shared consumer, or
        to a client that buffers deliveries."""
        if ack is None or self._life_of[ack.process] < self._life_of[event.process]:
            return False
        if self._leases.buffered(event):
            return self._leases.not_before_ns(event) <= ack.t_ns
        if ack.process == event.process:
            return False
        if self._life_of[ack.process] > self._life_of[event.process]:
            return True  # sent by an earlier life of the broker than the one that was acked
        return self._leases.shared(event) and self._leases.not_before_ns(event) <= ack.t_ns

    def _may_be_lost(self, ack: Event, life: int) -> bool:
        """Whether an ack may be lost: the broker that answered it was killed before the ack's flush was due."""
        answered_by = self._life_of[ack.process]
        if answered_by >= life:
            return False
        end_ns, killed = self._ends[answered_by]
        began = self._excuse_began.values()
        excused = sum(
            max(0, min(until, end_ns) - max(since, ack.t_ns))
            for since, until in [*self._excused, *((since, end_ns) for since in began)]
        )
        return killed and end_ns - ack.t_ns - excused <= self._ack_window_ns

    def _acked(self, event: Event) -> None:
        assert event.topic is not None
        assert event.consumer is not None
        assert event.id is not None
        message = (event.topic, event.consumer, event.id)
        self._acks_sent.setdefault(message, event.t_ns if event.sent_ns is None else event.sent_ns)
        self._last_ack[message] = event
        if event.result == "ok":
            known = self._acks.get(message)
            if known is None:
                self._verdict.acked += 1
            # The oldest had the most time for its flush; a synced one stays.
            if known is None or (event.sync and not known.sync):
                self._acks[message] = event

    def verdict(self) -> Verdict:
        """Return counts and violations."""
        verdict = self._verdict
        for told, otherwise in self._renamed:
            if not self._may_be_forgotten(told, otherwise):
                verdict.broken("one key was given two ids", told, otherwise)
        appeared = {(topic, seen[0].key or ""): seen[0] for (topic, _, _), seen in self._deliveries.items()}
        for owner, attempts in self._attempts.items():
            shown = appeared.get(owner)
            answered = [attempt for attempt in attempts if attempt.result in ("ok", "dup")]
            if answered:
                self._find_strange(answered[0], attempts)
            elif shown is not None and all(attempt.result == "err" for attempt in attempts):
                if self._drained is None:  # it may have been sent again: of a history that was cut off the answer is missing
                    continue
                verdict.unexpected += 1
                verdict.broken("a refused message was delivered", attempts[-1], shown)
            elif shown is not None:
                verdict.recovered += 1
        for last, event, buffered in self._falling:
            attempts = self._attempts.get((event.topic or "", event.key or ""), [])
            # One that lies unread until its lease ends comes again, in the place that it has then, and may count no attempt.
            unread = buffered and self._leases.may_end(self._published_ns(event), event.t_ns)
            if not unread and all(not attempt.delay_ms for attempt in attempts):
                verdict.broken("first deliveries of one connection do not ascend", last, event)
        for seen in (*self._deliveries.values(), self._fleeting):
            self._compare(seen)
        self._fates.judge(
            self._attempts, verdict, drained=self._drained is not None, digest_of=self._digest_of,
            gone=self._may_be_gone, removed=self._may_be_removed,
        )  # fmt: skip
        self._key_order.judge(verdict, drained=self._drained is not None)
        if self._drained is not None:
            drained_ns = self._drained.t_ns
            self._leases.judge(
                self._published_ns, lambda delivery: self._may_have_ended(delivery, drained_ns), self._was_delayed, verdict
            )
            self._find_lost(self._drained)
            self._find_forgotten(self._drained)
            self._fates.judge_removed((*self._accepted.values(), *self._stored.values()), self._consumers, verdict)
        return verdict

    def _digest_of(self, topic: str, msg_id: int) -> str | None:
        owner = self._owner.get((topic, msg_id))
        return None if owner is None else owner.digest

    def _published_ns(self, delivery: Event) -> int:
        """When a delivered message was first sent to the broker; 0 when unknown."""
        attempts = self._attempts.get((delivery.topic or "", delivery.key or ""), ())
        return min((attempt.sent_ns or 0 for attempt in attempts), default=0)

    def _find_strange(self, answered: Event, attempts: list[Event]) -> None:
        """Check that a DUP is the first answer to a key only if an earlier attempt may have been stored."""
        may_be_first = (attempt for attempt in attempts if attempt.result in ("ok", "unknown"))
        if answered.result == "dup" and all((attempt.sent_ns or 0) > answered.t_ns for attempt in may_be_first):
            self._verdict.broken("a key that was never published was answered DUP", answered)

    def _compare(self, seen: list[Event]) -> None:
        """Compare the deliveries of one message to one consumer with its publishes, all of which are known at the end."""
        for event in seen:
            assert event.topic is not None
            assert event.id is not None
            if self._fates.ours(event):
                continue
            key = (event.topic, event.key or "")
            attempts = self._attempts.get(key)
            if attempts is None and not self._drained:
                continue  # its publish may be unanswered
            if attempts is None:
                self._verdict.unexpected += 1
                self._verdict.broken("a message came that was never published", event)
            elif all(attempt.digest != event.digest for attempt in attempts):
                self._verdict.broken("a message was changed", attempts[0], event)

    def _find_lost(self, drained: Event) -> None:
        missing: dict[str, set[str]] = defaultdict(set)
        owed: list[tuple[Event, int | None]] = [(accepted, msg_id) for (_, msg_id), accepted in self._accepted.items()]
        owed += [(stored, None) for stored in self._stored.values()]
        for accepted, msg_id in owed:
            topic, key = accepted.topic or "", accepted.key or ""
            for (of, consumer), subscribed in self._consumers.items():
                if not covers(of, topic) or accepted.t_ns < subscribed.t_ns:  # retention may have removed it before that
                    continue
                if self._fates.seen(topic, consumer, key):
                    continue
                if msg_id is not None and (topic, consumer, msg_id) in self._deliveries:
                    continue
                if self._fates.acked_as_another(accepted, consumer):
                    continue
                ids = {told.id for told in self._ids[topic, key]} if msg_id is None else {msg_id}
                if any(self._fates.is_letter(topic, consumer, each) for each in ids if each is not None):
                    continue  # its connections have not read it
                attempts = self._attempts[topic, key]  # any of them may have been stored
                if not any(self._fates.may_be_gone(attempt, drained.t_ns, self._life_of) for attempt in attempts):
                    self._verdict.lost += 1
                    self._verdict.broken(f"an acknowledged message never came to {consumer}", accepted, subscribed)
                elif not self._fates.may_be_removed(accepted, self._life_of):
                    missing[topic].add(key)
        dropped = {topic: len(keys) for topic, keys in missing.items() if self._fates.may("drop", topic)}
        self._fates.judge_dropped(dropped, self._verdict, drained)

    def _may_have_ended(self, delivery: Event, end_ns: int) -> bool:
        """Whether a message may be gone without an ack: as a dead letter, expired, dropped or removed."""
        topic = delivery.topic or ""
        attempts = self._attempts.get((topic, delivery.key or ""), [])
        return self._fates.is_letter(topic, delivery.consumer or "", delivery.id or 0) or any(
            self._fates.may_be_gone(attempt, end_ns, self._life_of) for attempt in attempts
        )

    def _was_delayed(self, delivery: Event) -> bool:
        attempts = self._attempts.get((delivery.topic or "", delivery.key or ""), [])
        return any(attempt.delay_ms for attempt in attempts)

    def _find_forgotten(self, drained: Event) -> None:
        """Check that every message was acked after its last delivery, or before it by an ack whose answer was lost."""
        for message, seen in self._deliveries.items():
            last, ack = seen[-1], self._last_ack.get(message)
            if ack is not None and ack.t_ns >= last.t_ns:
                continue
            if ack is not None and ack.result == "unknown" and self._may_have_met(ack, last):
                continue
            if not self._may_have_ended(last, drained.t_ns):
                self._verdict.broken("a message was never acked, and did not come again", last)

    def _may_have_met(self, ack: Event, delivery: Event) -> bool:
        """Whether the life of the broker that sent a delivery may also have processed an ack whose answer was lost, or came
        from either of two successive workers."""
        life = self._life_of[delivery.process]
        if self._life_of[ack.process] == life:
            return True
        return ack.note == OF_EITHER and life <= bisect_left(self._ends, (ack.t_ns,))


def check(events: Iterable[Event], *, ack_window_ns: int = ACK_WINDOW_NS, keys_end_with_acks: bool = False) -> Verdict:
    """Return the verdict on a whole history; the options are those of ``Checker``."""
    checker = Checker(ack_window_ns=ack_window_ns, keys_end_with_acks=keys_end_with_acks)
    for event in events:
        checker.feed(event)
    return checker.verdict()
