"""Pass commands of a session on to the workers that have their topics, so that a client need not know them. ADR 0156.

A client that has sent ``CLUSTER moved=1`` follows MOVED by itself. For its session, and for each session in a cluster (ADR
0190), only commands that settle messages are passed on. A session whose client is a worker or a leader has no ``Passing``.

    commands ──► ours: Handler
             └─► another's: Upstream of that worker ──► its replies, in their places; MSG and CLOSED, as pushes
"""

import asyncio
from collections import deque
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from functools import partial

from toymq_py.errors import AlreadySubscribed, NameBusy, NoSuchTopic, PlacementUnknown, RequestError
from toymq_py.names import PARTITION_MARK, is_pattern
from toymq_py.partitioned_topics import PartitionedTopics
from toymq_py.placement import Place, Placement
from toymq_py.protocol import (
    Ack,
    Cluster,
    Command,
    Create,
    Delete,
    Describe,
    Held,
    Hello,
    Nack,
    Pause,
    Publish,
    Pull,
    Resume,
    SettlementRun,
    Stats,
    Subscribe,
    Topics,
    Touch,
    Unsubscribe,
    encode_command,
    encode_ok,
)
from toymq_py.session.all_there import AllThere
from toymq_py.session.deliveries import Deliveries
from toymq_py.session.gate import Gate
from toymq_py.session.gathering import NO_TOPIC, NOT_HERE, WHOLE, Gathering, Merge, told
from toymq_py.session.lost_session import LostSession
from toymq_py.session.partial_stats import PartialStats
from toymq_py.session.passed_on import Expected, WorkerLink, admitted, is_fatal
from toymq_py.session.pattern_pull import PatternPull
from toymq_py.session.place_links import PlaceLinks
from toymq_py.session.refused_sequences import RefusedSequences
from toymq_py.session.replies import MADE_COST_BYTES, WAIT_COST_BYTES, PendingReply, Replies
from toymq_py.session.spread_subscription import SpreadSubscription
from toymq_py.session.stages import Plan, Stages, in_words, is_change, plan_of, to_repeat
from toymq_py.topic import Refused

SETTLES = Ack, Nack, Touch, SettlementRun
SETTLING = (*SETTLES, Unsubscribe)
STAGED = Create, Delete
BY_PATTERN = Subscribe, Pull, Unsubscribe, Held
"""Commands that, for a partitioned topic, are carried out as for the pattern of its partitions."""
OF_WHOLE = (*WHOLE, Subscribe, Pull)
TOPICS_CACHED_MAX = 256
"""As many as a connection remembers as legal (``batch_parser.NAMES_CACHED_MAX``): 4,096 long names take 1 MB."""


class Passing:
    """Passes the commands of one session on. Belongs to the loop."""

    __slots__ = ("_deliveries", "_follows", "_gate", "_looked_up", "_looks", "_loop", "_moved", "_partitioned", "_placement",
                 "_places", "_pulls", "_replies", "_turn", "links")  # fmt: skip

    def __init__(
        self, placement: Placement, partitioned: PartitionedTopics, replies: Replies, deliveries: Deliveries,
        loop: asyncio.AbstractEventLoop, gate: Gate, unread: Callable[[], bool], abort: Callable[[], None], *,
        trusted: bool = False,
    ) -> None:  # fmt: skip
        """
        Args:
            partitioned: the table of partitioned topics, which each worker has.
            deliveries: the session's own, to look at its subscriptions.
            unread: returns whether the client does not read.
            abort: ends the session.
            trusted: the connections to other workers have all rights.
        """
        self._placement = placement
        self._partitioned = partitioned
        self._replies = replies
        self._deliveries = deliveries
        self._loop = loop
        self._gate = gate
        self.links = PlaceLinks(placement, partitioned, replies, loop, unread, abort, trusted=trusted)
        self._follows = not placement.passes_on
        self._moved = False  # the client has said that it follows
        self._places: dict[str, Place] = {}
        self._looked_up: Container[str] | None = None
        self._pulls: deque[PatternPull] = deque()
        self._looks: set[PartialStats] = set()
        self._turn = placement.worker - 1

    # -- commands

    def take(self, command: Command, refused: RefusedSequences) -> bool:
        """Pass a command on if another worker has its topic. Returns: whether it was passed on; otherwise this worker has to
        apply it.

        Raises: PlacementUnknown when that worker cannot be reached, or has partitions of a topic that is not partitioned here;
        NameBusy when the worker's partitions are not known yet; StorageFailed when the number of a topic's partitions is lost.
        """
        if self.links.spread and _ends_leases(command):
            self.links.settled()
        topic: str | None = getattr(command, "topic", None)
        looked_up, self._looked_up = self._looked_up, None
        if topic is None:
            return self._take_other(command)
        if isinstance(command, Subscribe):
            self._check_free(topic)
        if self._partitioned.lost and not isinstance(command, Create):
            self._partitioned.refuse_lost(topic)
        if isinstance(command, STAGED):
            plan = plan_of(command, self._placement, self._partitioned, follows=self._follows)
            if plan is not None:
                self._begin(command, plan)
                return True
        if self._partitioned.by_name and self._partitioned.find(topic) is not None:
            return self._take_whole(command, topic)
        if isinstance(command, Unsubscribe | Held) and topic in self.links.spread:  # maybe of all of a topic that is no more
            return self._take_pattern(command)
        place = self._places.get(topic)
        if place is None and is_pattern(topic):
            return self._take_pattern(command)
        place = self._place(topic) if place is None else place
        if place == self._placement.here and not (self.links.open and self._is_by_pattern(command, place)):
            return False
        if self._follows and not isinstance(command, SETTLING):
            return False
        if isinstance(command, OF_WHOLE) and isinstance(place, int):
            self._refuse_half_made(topic, place, looked_up)
        self._pass_on(command, self.links.to(place, command), refused)
        return True

    def _refuse_half_made(self, topic: str, worker: int, looked_up: Container[str] | None) -> None:
        """Refuse a topic that another worker knows as partitioned and this one does not. ``looked_up``: that worker's topics,
        if they were just read for this command. Raises: PlacementUnknown, NameBusy."""
        found = self._partitioned.of_worker(worker) if looked_up is None else looked_up
        if found is None:
            raise NameBusy(f"{topic} is being looked up: send it again in a moment", partial(self._look_up, worker))
        self._partitioned.refuse_half_made(topic, found)

    def _look_up(self, worker: int, call: Callable[[], None]) -> None:
        def looked_up(found: Container[str]) -> None:
            self._looked_up = found
            call()

        self._partitioned.read_of_worker(worker, looked_up)

    def _take_other(self, command: Command) -> bool:
        """Take a command without a topic. Returns: as ``take``."""
        if isinstance(command, Topics) and command.pattern is not None and self._partitioned.has_none(command.pattern):
            return False  # nothing is waited for
        if isinstance(command, Stats) and command.partial:
            self._look_around()
            return True
        if isinstance(command, Topics | Stats):
            self._ask_all(command, Gathering.topics if isinstance(command, Topics) else Gathering.stats)
            return True
        if isinstance(command, Hello):
            self.links.hello = self.links.hello or command  # a second one is refused
        elif isinstance(command, Cluster):
            self._moved = command.moved
            self._follows = command.moved or not self._placement.passes_on
        elif isinstance(command, Pause | Resume):
            self.links.pause(command)
        return False

    def refusal(self, command: Command, error: RequestError) -> RequestError:
        """The error as this client gets it. A client that follows MOVED waits for the next leader of a group that is away, as
        in any failover, with the commands that it repeats: numbered publishes, and subscriptions."""
        if self._moved and isinstance(command, Publish | Subscribe) and isinstance(error, PlacementUnknown):
            return error.moved or error
        return error

    def _check_free(self, name: str) -> None:
        """Check that no subscription overlaps. Raises: AlreadySubscribed."""
        pattern = self._partitioned.pattern_of(name)
        self._deliveries.check_free(name, pattern)
        for worker in self.links.open.values():
            for other, one in worker.subscribed.items():
                of_other = one.pattern
                if one.ending:  # the worker refuses this one if it does not end
                    continue
                if pattern.overlaps(of_other or other) if pattern else of_other.matches(name) if of_other else other == name:
                    raise AlreadySubscribed(f"this session is subscribed to {other} already")

    def _is_by_pattern(self, command: Command, place: Place) -> bool:
        """Whether a command settles messages that this worker delivered to a pattern, over a connection to itself."""
        worker = self.links.open.get(place)
        return worker is not None and isinstance(command, SETTLING) and worker.covering(command.topic) is not None

    def _take_pattern(self, command: Command) -> bool:
        if isinstance(command, Subscribe):
            self._subscribe_everywhere(command)
        elif isinstance(command, Pull):
            self._pull(command)
        elif isinstance(command, Unsubscribe) and (found := self._spread(command)) is not None:
            command = replace(command, topic=found.command.topic)
            if command.consumer == found.command.consumer:
                del self.links.spread[command.topic]
                found.ask_no_more()
                found.in_hand.says(uncounted=command.uncounted)
                if len(found.joined) > 1 and not command.uncounted:
                    self._leave_several(command, found)
                    return True
            self._leave(command, found.joined)
        elif isinstance(command, Held) and (found := self._spread(command)) is not None:
            if command.uncounted is not None and command.consumer == found.command.consumer:
                found.in_hand.says(uncounted=command.uncounted)
            self._ask_all(replace(command, topic=found.command.topic), found.held, places=found.joined)
        else:
            return False
        return True

    def _leave(self, command: Unsubscribe, places: Sequence[Place], held: PendingReply | None = None) -> None:
        merge = lambda gathered: gathered.refusal or encode_ok(0)  # noqa: E731
        self._ask_all(command, merge, ends=command.topic, held=held, places=places)

    def _leave_several(self, command: Unsubscribe, found: SpreadSubscription) -> None:
        """End a subscription at several places: first at all but the one whose message counts an attempt, then there. Later
        commands wait until then: one may be a SUB again."""
        held = self._replies.hold(PendingReply(MADE_COST_BYTES))

        def leave(over: Callable[[], None]) -> None:
            def done() -> None:
                places = [place for place in found.joined if place not in lost.withdrawn]
                if self.links.closed:
                    pass
                elif places:
                    self._leave(command, places, held)
                else:
                    self._replies.fill(held, lambda: encode_ok(0))
                over()

            lost = LostSession([found], self.links.ask, self._loop, done)
            lost.begin()

        self._gate.wait(leave, self._replies.wake)

    def _spread(self, command: Unsubscribe | Held) -> SpreadSubscription | None:
        spread = self.links.spread
        return spread.get(command.topic) or spread.get(self._partitioned.other_name(command.topic))

    def _take_whole(self, command: Command, topic: str) -> bool:
        """Take a command for a partitioned topic, of which each worker has some partitions. A PUB is divided before it comes
        here."""
        if isinstance(command, BY_PATTERN):
            return self._take_pattern(command)
        if (merge := WHOLE.get(type(command))) is None:
            return False
        held = self._replies.hold(PendingReply(MADE_COST_BYTES))
        if not isinstance(command, Describe):  # what stands behind a change is not applied before its reply is written
            self._gate.wait_for(held, self._replies.wake)
        if is_change(command):
            self._when_all_are_there(command, self._placement.places(), held, partial(self._change_whole, command, merge, held))
            return True
        try:
            self._ask_all(command, lambda gathered: gathered.of_whole(merge, topic), held=held)
        except RequestError as error:
            self._replies.fail(held, error)
        return True

    def _change_whole(self, command: Command, merge: Merge, held: PendingReply) -> None:
        """Change a partitioned topic at all places. Raises: PlacementUnknown when nothing was sent."""

        def changed(gathered: Gathering) -> bytes:
            reply = gathered.of_whole(merge, getattr(command, "topic", "")) or b""
            return to_repeat(command, reply, begun=any(not one.startswith(b"ERR ") for one in gathered.replies.values()))

        self._ask_all(command, changed, held=held)

    def _when_all_are_there(
        self, command: Command, places: Sequence[Place], held: PendingReply, begin: Callable[[], None]
    ) -> None:
        AllThere(command, held, begin, self.links, self._replies).ask(self._placement, places, self._loop)

    def ask_others(self, command: Delete, error: NoSuchTopic) -> bool:
        """Ask the other workers to DELETE a topic that is not here, see ``plan_of``; ``error`` is the reply if none has it.
        Returns: False if no other worker can have it."""
        if self._placement.table is None and PARTITION_MARK not in command.topic:
            self._begin(command, Plan([self._placement.others()], NOT_HERE), error)
            return True
        return False

    def _begin(self, command: Create | Delete, plan: Plan, missing: NoSuchTopic | None = None) -> None:
        """Carry out a plan: ask its stages in turn. Later commands wait until the reply is written: they would overtake this
        one."""
        held = self._replies.hold(PendingReply(MADE_COST_BYTES))
        self._gate.wait_for(held, self._replies.wake)
        merge = partial(Gathering.sum_of_some, lacks=plan.lacks) if plan.lacks else Gathering.total

        def ask(places: Sequence[Place], answered: Callable[[bytes], None]) -> None:
            self._ask_all(command, merge, held=held, places=places, share=answered)

        def done(reply: bytes | RequestError) -> None:
            if isinstance(reply, RequestError):
                self._replies.fail(held, in_words(reply, partial(to_repeat, command)))
            else:
                self._replies.fill(held, lambda: to_repeat(command, told(command.topic, NO_TOPIC[:1], reply)))

        places = list(dict.fromkeys(place for stage in plan.stages for place in stage))
        self._when_all_are_there(command, places, held, Stages(plan, ask, done, missing).begin)

    def _pull(self, command: Pull) -> None:
        """Take a PULL of a pattern. The worker that is asked first changes, so that none is always the last. The PULL begins
        when the one before it has ended, since a session has one connection for waits to each worker; its wait time already
        counts."""
        held = self._replies.hold(PendingReply(WAIT_COST_BYTES))
        places = self._placement.places()
        self._turn += 1
        asked: list[Expected] = []

        def ask(place: Place, command: Command, answered: Callable[[bytes], None]) -> None:
            asked.append(Expected(held if isinstance(command, Pull) else None, 1, share=answered))
            self.links.send(self.links.to(place, command), [encode_command(command)], asked[-1])

        def done(reply: bytes) -> None:
            for late in asked:
                late.held = None
            self._pulls.popleft()
            self._replies.fill(held, lambda: told(command.topic, NO_TOPIC[:1], reply))
            if self._pulls:
                self._pulls[0].begin()
            elif self.links.finishing:
                self.links.finish()

        order = [places[(self._turn + at) % len(places)] for at in range(len(places))]
        lost = partial(self.links.lost_reply, held)
        loop = self._loop
        pull = PatternPull(command, order, ask, self.links.connected, done, lost, loop.call_later, loop.time)
        self._pulls.append(pull)
        if len(self._pulls) == 1:
            pull.begin()

    def _ask_all(
        self, command: Command, merge: Callable[[Gathering], bytes | None], ends: str | None = None,
        held: PendingReply | None = None, places: Sequence[Place] | None = None, share: Callable[[bytes], None] | None = None,
    ) -> None:  # fmt: skip
        """Ask every worker including this one, or some; the reply is made from all of their replies, or given to a caller that
        shares it. Raises: PlacementUnknown."""
        places = self._placement.places() if places is None else places
        workers = [self.links.to(place, command) for place in places]
        data = encode_command(command)
        held = held or self._replies.hold(PendingReply(MADE_COST_BYTES + len(data)))
        gathering = self._gathering(len(places), held)

        def add(place: Place, answer: bytes) -> None:
            self._replies.charge(held, len(answer))
            if gathering.add(place, answer):
                if share is not None:
                    share(merge(gathering) or b"")
                else:
                    self._replies.fill(held, lambda: merge(gathering))

        for place, worker in zip(places, workers, strict=True):
            self.links.send(worker, [data], Expected(held, 1, share=partial(add, place), ends=ends))

    def _gathering(self, count: int, held: PendingReply) -> Gathering:
        first = None if self._placement.passes_on else self._placement.here
        return Gathering(count, first, partial(self._replies.grew, held))

    def _look_around(self) -> None:
        """Answer ``STATS partial=1`` from the workers or groups that answer soon."""
        held = self._replies.hold(PendingReply(MADE_COST_BYTES))
        places = self._placement.places()

        def done() -> None:
            self._looks.discard(look)
            self._replies.fill(held, look.make)

        look = PartialStats(
            places, self._gathering(len(places), held), self.links.connected, self._placement.problem_of, self._loop.call_later,
            done, partial(self._replies.charge, held),
        )  # fmt: skip
        self._looks.add(look)
        look.begin()

    # -- subscriptions that are everywhere

    def _subscribe_everywhere(self, command: Subscribe) -> None:
        """Subscribe at every place. Later commands wait until the reply is written: one may be its UNSUB."""
        held = self._replies.hold(PendingReply(MADE_COST_BYTES))

        def reply(answer: bytes) -> None:
            held.released, held.last = (self.links.end_soon, True) if is_fatal(answer) else (found.released, False)
            if found.has_ended:
                self.links.spread.pop(command.topic, None)
            self._replies.fill(held, lambda: told(command.topic, NO_TOPIC[:1], answer))

        places = self._placement.places()
        missing = {place for one in self.links.spread.values() for place in one.missing}
        missing.update(filter(self._placement.problem_of, places))
        found = SpreadSubscription(command, places, self._gathering(len(places), held), self.links, self._loop, reply, missing)
        self.links.spread[command.topic] = found
        self._gate.wait(found.when_written, self._replies.wake)
        found.begin()

    # -- what is for one place

    def _place(self, topic: str) -> Place:
        if not self._placement.passes_on:
            return self._placement.place_of(topic)  # it changes
        place = self._places.get(topic)
        if place is None:
            if len(self._places) >= TOPICS_CACHED_MAX:
                self._places.clear()
            place = self._places[topic] = self._placement.place_of(topic)
        return place

    def _pass_on(self, command: Command, worker: WorkerLink, refused: RefusedSequences) -> None:
        if isinstance(command, Publish):
            for part in admitted(command, refused):
                if isinstance(part, Refused):
                    self._replies.add_error(part.error)
                else:
                    unsent = partial(refused.refuse, part.topic, part.keys, part.seqs) if part.seqs is not None else None
                    self._ask(worker, part, [encode_command(part)], len(part.keys), unsent)
        elif isinstance(command, SettlementRun):
            lines = [encode_command(one) for one in command.each()]
            self._ask(worker, command.command, lines, len(lines))
        else:
            self._ask(worker, command, [encode_command(command)], 1)

    def _ask(
        self, worker: WorkerLink, command: Command, pieces: list[bytes], count: int, unsent: Callable[[], None] | None = None
    ) -> None:
        topic: str = getattr(command, "topic", "")
        held = PendingReply(MADE_COST_BYTES + sum(map(len, pieces)))
        self._replies.hold(held)
        subscribes = topic if isinstance(command, Subscribe) else None
        ends = topic if isinstance(command, Unsubscribe) else None
        tell = None if self._follows else partial(told, topic, NO_TOPIC[:1])
        self.links.send(worker, pieces, Expected(held, count, subscribes, ends=ends, told=tell, unsent=unsent))

    def take_part(self, part: Publish, refused: RefusedSequences) -> list[PendingReply | Refused] | None:
        """Pass on publishes to a partition, even for a client that follows MOVED, which cannot know where the partition is.
        Returns: a place for each reply, which the caller queues; None when the partition is with this worker."""
        place = self._place(part.topic)
        if place == self._placement.here:
            return None
        try:
            worker = self.links.to_one_that_leads(place, part)
        except RequestError as error:  # of other partitions some may be sent by now
            if part.seqs is not None:
                refused.refuse(part.topic, part.keys, part.seqs)
            return [Refused(1, error.bare())] * len(part.keys)
        tell = partial(told, part.topic, NO_TOPIC[1:] if self._follows else NO_TOPIC)
        found: list[PendingReply | Refused] = []
        for rows in admitted(part, refused):
            if isinstance(rows, Refused):
                found.append(rows)
                continue
            for row, body in enumerate(rows.bodies):
                held = PendingReply(MADE_COST_BYTES + len(body))
                unsent = None if rows.seqs is None else partial(refused.refuse, part.topic, [rows.keys[row]], [rows.seqs[row]])
                worker.expected.append(Expected(held, 1, told=tell, unsent=unsent))
                found.append(held)
            worker.link.send([encode_command(rows)])
        return found

    # -- the session

    def end_waits(self) -> bool:
        """Answer waiting PULLs of patterns, and those that would wait. Returns: whether there were any."""
        return bool([pull for pull in self._pulls if pull.end_wait()])

    def finish(self) -> None:
        """Note that the client sends no more commands: waiting commands are answered."""
        for one in list(self.links.spread.values()):
            one.ask_now()
        self.links.finishing = True
        self.end_waits()
        if not self._pulls:  # else one of them still asks
            self.links.finish()

    def close(self) -> None:
        """Close the connections to other workers: the session has ended."""
        for pull in self._pulls:
            pull.close()
        for look in self._looks:
            look.close()
        self.links.close()


def _ends_leases(command: Command) -> bool:
    """Whether a command settles messages, so that its client does not hang. A client that renews a lease may hang on its
    message (ADR 0272)."""
    settles = command.command if isinstance(command, SettlementRun) else command
    return isinstance(settles, Ack | Nack)
