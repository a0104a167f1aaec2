"""Dead letters of all topics of a broker: moves, REDRIVE, recovery.

Contract: delivery.md, "Attempts"; ADR 0023. Joins a topic with its dead-letter topic; topics know nothing of each other.
Belongs to the event loop.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from toymq_py.callbacks import call_all
from toymq_py.clock import Clock
from toymq_py.deadletter.ledger import MoveLedger, ack_moved_messages, ack_redriven_letters
from toymq_py.deadletter.mover import DeadLetterMover
from toymq_py.deadletter.redrive import Redrive, RedriveDone
from toymq_py.errors import BadArgument, RequestError, ShuttingDown
from toymq_py.letter import Witness, moved_records
from toymq_py.names import DEAD_LETTERS, is_dead_letters
from toymq_py.records import IdRange
from toymq_py.storage.commit.sync_threads import Scheduler
from toymq_py.topic import Channel, Topic


class DeadLetters:
    """Moves messages between topics and their dead-letter topics, for one broker."""

    def __init__(self, scheduler: Scheduler, clock: Clock, topic: Callable[[str], Topic]) -> None:
        """``topic`` returns the topic of a name, and creates it if it is missing. Raises RequestError when it can do
        neither."""
        self._scheduler = scheduler
        self._clock = clock
        self._topic = topic
        self._movers: dict[Topic, DeadLetterMover] = {}
        self._redrives: dict[Topic, deque[Redrive]] = {}  # of each dead-letter topic, the one that runs first
        self._ledgers: dict[Topic, MoveLedger] = {}
        self._witnesses: dict[str, list[Witness]] = {}  # of each topic, while topics are recovered
        self._finished: Callable[[], None] | None = None
        self._stopping = False
        self._closed = False
        self._suspended: dict[Topic, RequestError] = {}
        self._quiet_waiters: list[tuple[Sequence[Topic], Callable[[], None]]] = []

    def _ledger(self, topic: Topic) -> MoveLedger:
        ledger = self._ledgers.get(topic)
        if ledger is None:
            ledger = self._ledgers[topic] = MoveLedger()
            topic.offsets.watch = ledger
        return ledger

    # -- recovery

    def note_recovered_keys(self, topic: str, keys: Iterable[tuple[int, Sequence[bytes]]]) -> None:
        """Note the keys of the records that recovery found in a topic's log: the key of a moved message names its source
        message, and so proves the move."""
        if witnesses := moved_records(keys, topic):
            self._witnesses[topic] = witnesses

    def settle_moves(self, topics: Mapping[str, Topic]) -> None:
        """Recovery, step 8: finish the moves whose acks were not durable when the broker died. Assumes that all topics are
        recovered."""
        for name, witnesses in self._witnesses.items():
            target, letters = topics[name], is_dead_letters(name)
            source = topics.get(name.removesuffix(DEAD_LETTERS) if letters else name + DEAD_LETTERS)
            if source is not None:
                (ack_moved_messages if letters else ack_redriven_letters)(source, target, witnesses, self._ledger(source))
        self._witnesses.clear()

    # -- at work

    def move_held(self, topic: Topic, channel: Channel) -> None:
        """Move a consumer's held messages, which will not be delivered again, to the dead-letter topic."""
        if self._closed or topic in self._suspended:
            return  # it is found again when the topic is opened anew
        mover = self._movers.get(topic)
        if mover is None:
            mover = self._movers[topic] = DeadLetterMover(
                topic,
                self._ledger(topic),
                scheduler=self._scheduler,
                clock=self._clock,
                letters=lambda: self._topic(topic.name + DEAD_LETTERS),
                idle=self._settle,
            )
        mover.add(channel)

    def forget(self, topic: Topic) -> None:
        """Forget a topic that was deleted or closed."""
        self._movers.pop(topic, None)
        self._ledgers.pop(topic, None)
        self._suspended.pop(topic, None)

    def suspend(self, topics: Sequence[Topic], error: RequestError, done: Callable[[], None]) -> None:
        """Stop moves out of these topics, and call ``done`` when none is under way; held messages stay held. A running REDRIVE
        ends with ``error`` after its batch, and new ones are refused with ``error``."""
        self._suspended.update(dict.fromkeys(topics, error))
        for topic in topics:
            if (mover := self._movers.get(topic)) is not None:
                mover.suspended = True
            for redrive in self._redrives.get(topic, ()):
                redrive.stopping = error
        self._quiet_waiters.append((topics, done))
        self._settle()

    def resume(self, topics: Sequence[Topic]) -> None:
        """End the suspension of these topics, which stay open."""
        for topic in topics:
            self._suspended.pop(topic, None)
            if (mover := self._movers.get(topic)) is not None:
                mover.suspended = False
            for channel in topic.channels.values():
                channel.notify_ready()

    def when_stored(self, topic: Topic, call: Callable[[], None]) -> Callable[[], object]:
        """Call ``call`` once, when the topic's next dead letters are on stable storage.

        Returns: a function that cancels that.
        """
        mover = self._movers.get(topic)
        if mover is None:
            return lambda: None
        mover.waiters[call] = None
        return lambda: mover.waiters.pop(call, None)

    def redrive(self, letters: Topic, ids: Sequence[IdRange] | None, max_count: int | None, done: RedriveDone) -> None:
        """Move dead letters back, those with the ``ids`` or all, ``max_count`` at most. Each topic runs one REDRIVE at a time.

        Raises: BadArgument (``letters`` is no dead-letter topic), ShuttingDown; then ``done`` is not called.
        """
        if not letters.is_dead_letters:
            raise BadArgument(f"{letters.name} is not a dead-letter topic: their names end with {DEAD_LETTERS}")
        if self._stopping:
            raise ShuttingDown("the broker is shutting down")
        if (suspended := self._suspended.get(letters)) is not None:
            raise suspended

        def ended(count: int, error: OSError | RequestError | None) -> None:
            queue.popleft()
            if queue:
                queue[0].start()
            else:
                del self._redrives[letters]
            done(count, error)
            self._settle()

        redrive = Redrive(
            letters, self._ledger(letters), ids=ids, max_count=max_count, scheduler=self._scheduler, done=ended,
            origin=lambda: self._topic(letters.name.removesuffix(DEAD_LETTERS)),
        )  # fmt: skip
        queue = self._redrives.setdefault(letters, deque())
        queue.append(redrive)
        if len(queue) == 1:
            redrive.start()

    def stop_redrives(self) -> None:
        """End each REDRIVE after its batch, and refuse new ones: the broker shuts down."""
        self._stopping = True
        for queue in self._redrives.values():
            for redrive in queue:
                redrive.stopping = ShuttingDown("the broker is shutting down")

    def finish(self, done: Callable[[], None]) -> None:
        """Shut down: move held messages as far as the disk allows, end each REDRIVE after its batch, then call ``done``."""
        self.stop_redrives()
        self._finished = done
        self._settle()

    def _settle(self) -> None:
        movers, redrives = self._movers, self._redrives
        quiet = [
            each for each in self._quiet_waiters
            if not any(topic in redrives or (topic in movers and movers[topic].busy) for topic in each[0])
        ]  # fmt: skip
        self._quiet_waiters = [each for each in self._quiet_waiters if each not in quiet]
        call_all([done for _, done in quiet])
        if self._finished is not None and not self._redrives and not any(mover.busy for mover in self._movers.values()):
            self._closed = True
            done, self._finished = self._finished, None
            done()
