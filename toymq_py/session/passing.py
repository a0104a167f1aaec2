"""Pass commands of a session on to the workers that have their topics, so that a client need not know them. ADR 0156.

A session that has said ``CLUSTER moved=1`` follows MOVED by itself: what settles deliveries, maybe of a pattern, alone is
passed on. So for each session where there are groups (ADR 0190). One of another worker or leader has no ``Passing``.

    commands ──► ours: Handler
             └─► another's: Upstream of that worker ──► its replies, in their places; MSG and CLOSED, as pushes

A reply is held where its command stands, so replies come in order. Deliveries wait until the ``OK`` of their SUB is written.
When a worker dies, nothing behind the first missing reply is written, and the client's connection ends: it repeats what it may.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from toymq_py.errors import REQUEST_ERRORS, AlreadySubscribed, NoSuchTopic, PlacementUnknown, RequestError, ShuttingDown
from toymq_py.names import PARTITION_MARK, is_pattern
from toymq_py.partitioned_topics import PartitionedTopics
from toymq_py.placement import Place, PlaceLink, Placement
from toymq_py.protocol import (
    Ack,
    Cluster,
    Command,
    Create,
    Delete,
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
    encode_error,
    encode_ok,
    first_word,
)
from toymq_py.session.deliveries import Deliveries
from toymq_py.session.gate import Gate
from toymq_py.session.gathering import NOT_HERE, WHOLE, Gathering
from toymq_py.session.passed_on import Expected, Subscribed, WorkerLink, admitted
from toymq_py.session.pattern_pull import PatternPull
from toymq_py.session.refused_sequences import RefusedSequences
from toymq_py.session.replies import MADE_COST_BYTES, WAIT_COST_BYTES, PendingReply, Replies
from toymq_py.session.stages import Plan, Stages, plan_of
from toymq_py.session.upstream import Upstream
from toymq_py.topic import Refused

SETTLING = Ack, Nack, Touch, SettlementRun, Unsubscribe
STAGED = Create, Delete
TOPICS_CACHED_MAX = 4096


class Passing:
    """Of one session. Belongs to the loop."""

    __slots__ = ("_abort", "_closed", "_deliveries", "_finishing", "_follows", "_gate", "_hello", "_loop", "_partitioned",
                 "_paused", "_placement", "_places", "_pulls", "_replies", "_trusted", "_turn", "_unread",
                 "_workers", "shutting_down")  # fmt: skip

    def __init__(
        self, placement: Placement, partitioned: PartitionedTopics, replies: Replies, deliveries: Deliveries,
        loop: asyncio.AbstractEventLoop, gate: Gate, unread: Callable[[], bool], abort: Callable[[], None], *,
        trusted: bool = False,
    ) -> None:  # fmt: skip
        """
        Args:
            partitioned: those of this worker, which has all of them.
            deliveries: those of this worker, for a look at the subscriptions.
            unread: whether the client does not read what was written.
            abort: ends the session.
            trusted: its connections have all rights.
        """
        self._placement = placement
        self._partitioned = partitioned
        self._replies = replies
        self._deliveries = deliveries
        self._loop = loop
        self._unread = unread
        self._gate = gate
        self._abort = abort
        self._trusted = trusted
        self._follows = not placement.passes_on
        self.shutting_down = False
        """This session ends by itself: it waits for acks alone."""
        self._hello: Hello | None = None
        self._paused = self._finishing = self._closed = False
        self._places: dict[str, Place] = {}
        self._workers: dict[Place, WorkerLink] = {}
        self._pulls: deque[PatternPull] = deque()
        self._turn = placement.worker - 1

    # -- commands

    def take(self, command: Command, refused: RefusedSequences) -> bool:
        """Pass a command on if another worker has its topic. Returns: whether that is so; otherwise it is for this one.

        Raises: ShuttingDown: that worker cannot be reached; StorageFailed: the topic is partitioned, and its number is lost.
        """
        topic: str | None = getattr(command, "topic", None)
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
            return self._take_whole(command)
        if isinstance(command, Unsubscribe) and self._is_of_all(topic):
            return self._take_pattern(command)
        place = self._places.get(topic)
        if place is None and is_pattern(topic):
            return self._take_pattern(command)
        place = self._place(topic) if place is None else place
        if place == self._placement.here and not (self._workers and self._is_by_pattern(command, place)):
            return False
        if self._follows and not isinstance(command, SETTLING):
            return False
        self._pass_on(command, self._worker(place), refused)
        return True

    def _is_of_all(self, topic: str) -> bool:
        """Whether a subscription is at every worker: also that of a partitioned topic which is no more."""
        found = (worker.subscribed.get(topic) for worker in self._workers.values())
        return any(one is not None and one.pattern is not None for one in found)

    def _take_other(self, command: Command) -> bool:
        """A command without a topic."""
        if isinstance(command, Topics | Stats):
            self._ask_all(command, Gathering.topics if isinstance(command, Topics) else Gathering.stats)
            return True
        if isinstance(command, Hello):
            self._hello = self._hello or command  # a second one is refused
        elif isinstance(command, Cluster):
            self._follows = command.moved or not self._placement.passes_on
        elif isinstance(command, Pause | Resume):
            self._paused = isinstance(command, Pause)
            for worker in self._workers.values():
                self._send(worker, [encode_command(command)], Expected(None, 1))
        return False

    def _check_free(self, name: str) -> None:
        """Raises: AlreadySubscribed."""
        pattern = self._partitioned.pattern_of(name)
        self._deliveries.check_free(name, pattern)
        for worker in self._workers.values():
            for other, one in worker.subscribed.items():
                of_other = one.pattern
                if one.ending:  # the worker refuses this one if it does not end
                    continue
                if pattern.overlaps(of_other or other) if pattern else of_other.matches(name) if of_other else other == name:
                    raise AlreadySubscribed(f"this session is subscribed to {other} already")

    def _is_by_pattern(self, command: Command, place: Place) -> bool:
        """Whether it settles what this worker delivered to a pattern, over a connection to itself."""
        worker = self._workers.get(place)
        return worker is not None and isinstance(command, SETTLING) and worker.covering(command.topic) is not None

    def _take_pattern(self, command: Command) -> bool:
        if isinstance(command, Subscribe):
            self._ask_all(command, Gathering.total, subscribes=command.topic)
        elif isinstance(command, Pull):
            self._pull(command)
        elif isinstance(command, Unsubscribe) and any(command.topic in one.subscribed for one in self._workers.values()):
            self._ask_all(command, lambda gathered: gathered.refusal or encode_ok(0), ends=command.topic)
        else:
            return False
        return True

    def _take_whole(self, command: Command) -> bool:
        """A command for a partitioned topic: each worker has some of its partitions. A PUB is divided before it comes here."""
        if isinstance(command, Subscribe | Pull | Unsubscribe):
            return self._take_pattern(command)
        if (merge := WHOLE.get(type(command))) is None:
            return False
        self._ask_all(command, merge)
        return True

    def ask_others(self, command: Delete, error: NoSuchTopic) -> bool:
        """Ask the other workers for a DELETE of what is not here, see ``plan_of``; ``error`` is the reply if none has it.
        Returns: whether one may."""
        if self._placement.table is None and PARTITION_MARK not in command.topic:
            self._begin(command, Plan([self._placement.others()], NOT_HERE), error)
            return True
        return False

    def _begin(self, command: Create | Delete, plan: Plan, missing: NoSuchTopic | None = None) -> None:
        """Ask in stages. No command behind it is applied before its reply is written: it would overtake this one."""
        held = self._replies.hold(PendingReply(MADE_COST_BYTES))
        self._gate.wait_for(held, self._replies.wake)
        merge = partial(Gathering.sum_of_some, lacks=plan.lacks) if plan.lacks else Gathering.total

        def ask(places: Sequence[Place], answered: Callable[[bytes], None]) -> None:
            self._ask_all(command, merge, held=held, places=places, share=answered)

        def done(reply: bytes | RequestError) -> None:
            if isinstance(reply, RequestError):
                self._replies.fail(held, reply)
            else:
                self._replies.fill(held, lambda: reply)

        Stages(plan, ask, done, missing).begin()

    def _pull(self, command: Pull) -> None:
        """A PULL of a pattern. The worker that is asked first changes, so that none is always the last. It begins when the one
        before has ended, as its reply comes behind that one's: a session has one connection to each worker that waits.
        """
        held = self._replies.hold(PendingReply(WAIT_COST_BYTES))
        places = self._placement.places()
        self._turn += 1

        def ask(place: Place, command: Command, answered: Callable[[bytes], None]) -> None:
            place_of = held if isinstance(command, Pull) else None
            self._send(self._worker(place), [encode_command(command)], Expected(place_of, 1, share=answered))

        def done(reply: bytes) -> None:
            self._pulls.popleft()
            self._replies.fill(held, lambda: reply)
            if self._pulls:
                self._pulls[0].begin()
            elif self._finishing:
                self._finish_links()

        order = [places[(self._turn + at) % len(places)] for at in range(len(places))]
        pull = PatternPull(command, order, ask, self._connected, done, lambda: self._lost_reply(held))
        self._pulls.append(pull)
        if len(self._pulls) == 1:
            pull.begin()

    def _ask_all(
        self, command: Command, merge: Callable[[Gathering], bytes | None], subscribes: str | None = None,
        ends: str | None = None, held: PendingReply | None = None, places: Sequence[Place] | None = None,
        share: Callable[[bytes], None] | None = None,
    ) -> None:  # fmt: skip
        """Ask every worker, this one too, or some: what they say together is the reply, or is shared. Raises: ShuttingDown."""
        places = self._placement.places() if places is None else places
        workers = [self._worker(place) for place in places]
        data = encode_command(command)
        held = held or self._replies.hold(PendingReply(MADE_COST_BYTES + len(data)))
        gathering = Gathering(len(places), None if self._placement.passes_on else self._placement.here)

        def released(begin: int) -> None:
            for worker in workers:
                self._released(worker)

        def add(place: Place, answer: bytes) -> None:
            if gathering.add(place, answer):
                if subscribes is not None:
                    held.released = released
                    if gathering.refusal is not None:
                        self._end_subscription(command, workers)
                if share is not None:
                    share(merge(gathering) or b"")
                else:
                    self._replies.fill(held, lambda: merge(gathering))

        withdraw = partial(self._end_subscription, command, workers) if subscribes is not None else None
        for place, worker in zip(places, workers, strict=True):
            self._send(worker, [data], Expected(held, 1, subscribes, partial(add, place), ends, withdraw))

    def _end_subscription(self, command: Command, workers: list[WorkerLink]) -> None:
        """A worker has refused it, or is lost: it ends at the others. The client had none of what they delivered."""
        assert isinstance(command, Subscribe)
        end = encode_command(Unsubscribe(command.topic, command.consumer, uncounted=True))
        for worker in workers:
            if (found := worker.subscribed.get(command.topic)) is not None:
                found.wanted = False
                self._send(worker, [end], Expected(None, 1, ends=command.topic))

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
                    self._ask(worker, [encode_command(part)], len(part.keys))
        elif isinstance(command, SettlementRun):
            lines = [encode_command(one) for one in command.each()]
            self._ask(worker, lines, len(lines))
        else:
            subscribes = command.topic if isinstance(command, Subscribe) else None
            ends = command.topic if isinstance(command, Unsubscribe) else None
            self._ask(worker, [encode_command(command)], 1, subscribes, ends)

    def take_part(self, part: Publish, refused: RefusedSequences) -> list[PendingReply | Refused] | None:
        """Pass on publishes to a partition, also for a client that follows: it cannot know where that is. Returns: the place of
        each reply, which the caller queues; None: the partition is with this worker. Raises: ShuttingDown."""
        place = self._place(part.topic)
        if place == self._placement.here:
            return None
        worker = self._worker(place)
        found: list[PendingReply | Refused] = []
        for rows in admitted(part, refused):
            if isinstance(rows, Refused):
                found.append(rows)
                continue
            held = [PendingReply(MADE_COST_BYTES + len(body)) for body in rows.bodies]
            worker.expected.extend(Expected(one, 1) for one in held)
            worker.link.send([encode_command(rows)])
            found += held
        return found

    def _ask(
        self, worker: WorkerLink, pieces: list[bytes], count: int, subscribes: str | None = None, ends: str | None = None
    ) -> None:
        held = PendingReply(MADE_COST_BYTES + sum(map(len, pieces)))
        self._replies.hold(held)
        self._send(worker, pieces, Expected(held, count, subscribes, ends=ends))

    def _send(self, worker: WorkerLink, pieces: list[bytes], expected: Expected) -> None:
        if expected.ends is not None:
            worker.ending(expected.ends)
        worker.expected.append(expected)
        worker.link.send(pieces)

    # -- connections

    def _worker(self, place: Place) -> WorkerLink:
        """Raises: ShuttingDown, PlacementUnknown."""
        worker = self._workers.get(place)
        if worker is not None:
            return worker
        worker = WorkerLink()
        worker.link = self._connected(place, partial(self._received, worker), partial(self._lost, place, worker))
        self._workers[place] = worker
        if self._hello is not None:
            worker.expected.append(Expected(None, 1))
        if self._paused:
            self._send(worker, [encode_command(Pause())], Expected(None, 1))
        return worker

    def _connected(self, place: Place, received: Callable[[list[bytes]], None], lost: Callable[[], None]) -> PlaceLink:
        """Another connection to a worker. Raises: ShuttingDown, PlacementUnknown."""
        link = self._placement.connected(place, received, lost, trusted=self._trusted)
        if link is None:
            assert isinstance(place, int), "groups connect by themselves"
            try:
                link = Upstream(self._placement.sockets[place], self._loop, received, lost)
            except OSError as error:
                raise ShuttingDown(f"worker {place} cannot be reached ({error.strerror or error}): try again") from error
        if self._hello is not None:
            link.send([encode_command(self._hello)])
        return link

    def _received(self, worker: WorkerLink, frames: list[bytes]) -> None:
        if worker.later is not None:
            worker.later += frames
            return
        for at, frame in enumerate(frames):
            word = first_word(frame)
            if word == b"CLOSED":
                if not frame.endswith(b" SHUTTING_DOWN\n"):  # its connection ends soon, and the subscription with that
                    worker.subscribed.pop(frame.split(b" ", 2)[1].decode(), None)
                self._replies.push(frame)
            elif word == b"MSG" and (of := worker.subscription_of(frame)) is not None:
                if of.wanted:
                    self._replies.push(frame)
            elif not worker.expected:
                self._lost_reply(None)  # it speaks of its own accord: of its end
            elif self._answer(worker, worker.expected[0], frame, word) and at + 1 < len(frames):
                worker.later = frames[at + 1 :]
                break
        if self._unread() or worker.later is not None:
            worker.link.pause()

    def _answer(self, worker: WorkerLink, expected: Expected, frame: bytes, word: bytes) -> bool:
        """Add a frame to the replies of a command. Returns: whether deliveries have to wait until it is written."""
        held = expected.held
        if held is not None:
            expected.pieces.append(frame)
            self._replies.charge(held, len(frame))
        if word == b"MSG":  # of a PULL: its OK follows
            return False
        expected.left -= 1
        fatal = word == b"ERR" and (error := REQUEST_ERRORS.get(frame.split(b" ", 2)[1].strip().decode())) and error.fatal
        if expected.left and not fatal:
            return False
        worker.expected.popleft()
        if expected.ends is not None and (ended := worker.subscribed.pop(expected.ends, None)) is not None and word != b"OK":
            ended.ending = False  # it was of another consumer
            worker.subscribed[expected.ends] = ended
        if held is None:  # what ends a connection is said to the next command, whose reply will not come
            return bool(fatal and worker.expected and self._answer(worker, worker.expected[0], frame, word))
        if fatal:  # a run has fewer replies than commands, and what follows would be taken for them
            held.released, held.last = self._end_soon, True
        answer = b"".join(expected.pieces)
        subscribes = expected.subscribes if word == b"OK" else None
        if subscribes is not None:
            worker.subscribed[subscribes] = Subscribed(self._partitioned.pattern_of(subscribes))
            worker.later = []
        if expected.share is not None:
            expected.share(answer)
            return subscribes is not None
        if subscribes is not None:
            held.released = lambda begin: self._released(worker)
        self._replies.fill(held, lambda: answer)
        return subscribes is not None

    def _released(self, worker: WorkerLink) -> None:
        """The OK of a SUB is being written: what came behind it may follow."""
        later, worker.later = worker.later or [], None
        self._loop.call_soon(self._go_on, worker, later)

    def _go_on(self, worker: WorkerLink, later: list[bytes]) -> None:
        if not self._closed:
            if later:
                self._received(worker, later)
            if worker.later is None and not self._unread():
                worker.link.resume()

    def _lost(self, place: Place, worker: WorkerLink) -> None:
        """A worker has closed the connection, or died."""
        if self._workers.get(place) is worker:
            del self._workers[place]
        if not self._placement.passes_on and not worker.subscribed:
            self._refuse_shares(place, worker)
        missing = [expected.held for expected in worker.expected if expected.held is not None]
        for expected in list(worker.expected):
            if expected.withdraw is not None:
                expected.withdraw()
        for held in missing:
            self._lost_reply(held)
        if not missing and worker.subscribed and not worker.link.finishing and not self.shutting_down:
            self._abort()  # a subscription of all, too: the client would wait for what this one had, and subscribes again

    def _refuse_shares(self, place: Place, worker: WorkerLink) -> None:
        """A group that is gone may be away for seconds: lists are refused, and the client stays. A SUB is not: its client
        connects again and repeats it."""
        error = encode_error(PlacementUnknown(f"group {place} does not answer, so its topics are not known: try again"))
        for expected in [one for one in worker.expected if one.share is not None and one.subscribes is None]:
            worker.expected.remove(expected)
            assert expected.share is not None
            expected.share(error)

    def _end_soon(self, begin: int) -> None:
        self._loop.call_soon(self._abort)

    def _lost_reply(self, held: PendingReply | None) -> None:
        """End the session where this reply stands: a later one would be taken for it."""
        if held is None:
            self._abort()
            return

        def cut() -> None:
            held.make = None
            self._loop.call_soon(self._abort)

        self._replies.fill(held, cut)

    # -- the session

    def resume(self) -> None:
        """The client reads again."""
        for worker in self._workers.values():
            if worker.later is None:
                worker.link.resume()

    def finish(self) -> None:
        """There are no more commands: what waits for messages is answered."""
        self._finishing = True
        for pull in self._pulls:
            pull.end_wait()
        if not self._pulls:  # else one of them still asks
            self._finish_links()

    def _finish_links(self) -> None:
        for worker in self._workers.values():
            worker.link.finish()

    def close(self) -> None:
        """The session has ended: its leases at other workers go back."""
        self._closed = True
        for pull in self._pulls:
            pull.close()
        for worker in self._workers.values():
            worker.link.close()
        self._workers.clear()
