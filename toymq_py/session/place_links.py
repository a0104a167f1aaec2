"""A session's connections to other workers or groups, with the commands and replies that pass over them. ADR 0156, 0190.

A reply takes its command's place, so replies stay in order. Deliveries wait until the ``OK`` of their SUB is written. When a
worker dies, nothing is written behind the first missing reply, and the client's connection ends: the client repeats what is
safe to repeat.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from toymq_py.errors import PlacementUnknown
from toymq_py.heartbeat import LOOK_AT_BEATS_S
from toymq_py.partitioned_topics import PartitionedTopics
from toymq_py.placement import Place, PlaceLink, Placement, named
from toymq_py.protocol import (
    Ack,
    Command,
    Held,
    Hello,
    Nack,
    Pause,
    Resume,
    SettlementRun,
    Touch,
    Unsubscribe,
    encode_command,
    encode_error,
    first_word,
)
from toymq_py.session.lost_session import LostSession
from toymq_py.session.passed_on import Expected, Subscribed, WorkerLink, is_fatal
from toymq_py.session.replies import PendingReply, Replies
from toymq_py.session.spread_subscription import SpreadSubscription
from toymq_py.session.upstream import PING, Upstream

OF_WHAT_IS_THERE = Ack, Nack, Touch, SettlementRun, Unsubscribe, Held
"""Commands for leases and subscriptions that a connection has already."""
UNREACHED_S = 4.0
"""How long other requests do not wait for a place that could not be reached. A group is known to be away this long after its
lease has ended."""


class PlaceLinks:
    """The connections of one session. Belongs to the loop."""

    __slots__ = ("_loop", "_loss", "_partitioned", "_paused", "_placement", "_replies", "_trusted", "_unreached_until",
                 "_unread", "_watch", "abort", "closed", "finishing", "hello", "open", "shutting_down", "spread")  # fmt: skip

    def __init__(
        self, placement: Placement, partitioned: PartitionedTopics, replies: Replies, loop: asyncio.AbstractEventLoop,
        unread: Callable[[], bool], abort: Callable[[], None], *, trusted: bool,
    ) -> None:  # fmt: skip
        """The arguments are those of ``Passing``."""
        self._placement = placement
        self._partitioned = partitioned
        self._replies = replies
        self._loop = loop
        self._unread = unread
        self.abort = abort
        """Ends the session."""
        self._trusted = trusted
        self.open: dict[Place, WorkerLink] = {}
        self.spread: dict[str, SpreadSubscription] = {}
        """Subscriptions that are at every place."""
        self.hello: Hello | None = None
        """The client's HELLO, which is repeated at each place."""
        self.finishing = False
        """Whether there are no more commands."""
        self.shutting_down = False
        """Whether the session ends by itself: it waits for acks alone."""
        self._paused = self.closed = False
        self._loss: LostSession | None = None
        self._unreached_until: dict[Place, float] = {}
        self._watch: asyncio.TimerHandle | None = None  # while an answer is missing

    def send(self, worker: WorkerLink, pieces: list[bytes], expected: Expected) -> None:
        if expected.ends is not None:
            worker.ending(expected.ends)
        worker.expected.append(expected)
        worker.link.send(pieces)

    # -- connections

    def to(self, place: Place, command: Command) -> WorkerLink:
        """The connection to a worker for a command. Commands for leases and subscriptions of an open connection are sent even
        if the worker stands still: they wait there. Raises: PlacementUnknown: it cannot be reached, or stands still."""
        worker = self.open.get(place)
        if not (worker is not None and isinstance(command, OF_WHAT_IS_THERE)):
            self._refuse_standstill(place)
        if self._watch is None and isinstance(place, int):
            self._watch = self._loop.call_later(LOOK_AT_BEATS_S, self._look)
        if worker is not None:
            return worker
        worker = WorkerLink()
        worker.link = self.connected(place, partial(self._received, worker), partial(self._lost, place, worker))
        worker.link.on_reached = partial(self._reached, place, worker)
        self.open[place] = worker
        if self.hello is not None:
            worker.expected.append(Expected(None, 1))
        if self._paused:
            self.send(worker, [encode_command(Pause())], Expected(None, 1))
        return worker

    def _refuse_standstill(self, place: Place) -> None:
        """Refuse a worker that stands still, not a group: its link waits for the next leader. Raises: PlacementUnknown."""
        if isinstance(place, int) and (problem := self._placement.problem_of(place)):
            raise PlacementUnknown(f"{named(place)} {problem}")

    def _look(self) -> None:
        """Treat a worker that stands still as lost if its missing reply holds up replies of others. The command was sent, so
        its outcome is unknown, and the session ends. A client that waits for this worker alone goes on waiting."""
        self._watch = None
        waited_for = [(place, worker) for place, worker in self.open.items() if worker.expected]
        for place, worker in waited_for:
            held = {expected.held for expected in worker.expected}
            if worker.link.reached and self._placement.problem_of(place) and self._replies.holds_up(held):
                worker.link.close()
                self._lost(place, worker)
        if waited_for and not self.closed:
            self._watch = self._loop.call_later(LOOK_AT_BEATS_S, self._look)

    def to_one_that_leads(self, place: Place, command: Command) -> WorkerLink:
        """As ``to``, but neither to a group that has had no leader for longer than a failover takes, nor to a place that was
        just found unreachable: a command that waits for it would hold up the replies to all later ones. Raises:
        PlacementUnknown."""
        worker = self.open.get(place)
        if (worker is None or not worker.link.reached) and (problem := self._placement.problem_of(place)):
            raise PlacementUnknown(f"{named(place)} {problem}")
        if worker is None and self._loop.time() < self._unreached_until.get(place, 0.0):
            raise PlacementUnknown(f"{named(place)} does not answer: try again in a moment")
        return self.to(place, command)

    def connected(self, place: Place, received: Callable[[list[bytes]], None], lost: Callable[[], None]) -> PlaceLink:
        """Open one more connection to a worker. Raises: PlacementUnknown."""
        self._refuse_standstill(place)
        greeting = b"" if self.hello is None else encode_command(self.hello)
        link = self._placement.connected(place, received, lost, trusted=self._trusted)
        if link is None:
            assert isinstance(place, int), "groups connect by themselves"
            try:
                stands_still = partial(self._placement.problem_of, place)
                return Upstream(self._placement.sockets[place], self._loop, received, lost, greeting or PING, stands_still)
            except OSError as error:
                raise PlacementUnknown(f"worker {place} cannot be reached ({error.strerror or error}): try again") from error
        if greeting:
            link.send([greeting])
        return link

    def pause(self, command: Pause | Resume) -> None:
        """Apply PAUSE and RESUME, also to connections that are made later."""
        self._paused = isinstance(command, Pause)
        for worker in self.open.values():
            self.send(worker, [encode_command(command)], Expected(None, 1))

    def _reached(self, place: Place, worker: WorkerLink) -> None:
        waiting, worker.waiting = worker.waiting, []
        for one in waiting:
            one.reached(place)

    def _received(self, worker: WorkerLink, frames: list[bytes]) -> None:
        if worker.later is not None:
            worker.later += frames
            return
        for at, frame in enumerate(frames):
            word = first_word(frame)
            if word == b"CLOSED":
                if not frame.endswith(b" SHUTTING_DOWN\n"):
                    self._closed_there(worker, frame)
                elif not self.closed:  # its connection ends soon, and the subscription with that
                    self._replies.push(frame)
            elif word == b"MSG" and (of := worker.subscription_of(frame)) is not None:
                if of.in_hand is not None:
                    of.in_hand.came(frame)
                if of.wanted:
                    self._replies.push(frame)
            elif not worker.expected:
                self.lost_reply(None)  # it speaks of its own accord: of its end
            elif self._answer(worker, worker.expected[0], frame, word) and at + 1 < len(frames):
                worker.later = frames[at + 1 :]
                break
        if not self.closed and (self._unread() or worker.later is not None):
            worker.link.pause()

    def _closed_there(self, worker: WorkerLink, frame: bytes) -> None:
        """Handle that a place has ended a subscription, or its part of one topic. The client is told once, and the subscription
        ends everywhere."""
        name = frame.split(b" ", 2)[1].decode()
        ended = worker.subscribed.pop(name, None)
        if (found := self.spread.pop(name, None)) is not None:
            found.end()
        if ended is None or ended.wanted:
            self._replies.push(frame)

    def _answer(self, worker: WorkerLink, expected: Expected, frame: bytes, word: bytes) -> bool:
        """Add a frame to the replies of a command. Returns: whether later deliveries have to wait until the reply is
        written."""
        held = expected.held
        if held is not None:
            self._replies.charge(held, len(frame))
        if held is not None or expected.share is not None:
            expected.pieces.append(frame if expected.told is None else expected.told(frame))
        if word == b"MSG":  # of a PULL: its OK follows
            return False
        expected.left -= 1
        fatal = is_fatal(frame)
        if expected.left and not fatal:
            return False
        worker.expected.popleft()
        if expected.ends is not None and (ended := worker.subscribed.pop(expected.ends, None)) is not None and word != b"OK":
            ended.ending = False  # it was of another consumer
            worker.subscribed[expected.ends] = ended
        if held is None and expected.share is None:  # what ends a connection is said to the next one, whose reply will not come
            return bool(fatal and worker.expected and self._answer(worker, worker.expected[0], frame, word))
        if fatal and held is not None:  # a run has fewer replies than commands, and what follows would be taken for them
            held.released, held.last = self.end_soon, True
        answer = b"".join(expected.pieces)
        subscribes = expected.subscribes if word == b"OK" else None
        if subscribes is not None:
            wanted = expected.spread is None or not expected.spread.has_ended
            pattern = self._partitioned.pattern_of(subscribes)
            worker.subscribed[subscribes] = Subscribed(pattern, expected.spread, wanted=wanted)
            worker.later = []
        if expected.share is not None:
            expected.share(answer)
            return subscribes is not None
        assert held is not None
        if subscribes is not None:
            held.released = lambda begin: self.released(worker)
        self._replies.fill(held, lambda: answer)
        return subscribes is not None

    def released(self, worker: WorkerLink) -> None:
        """Release the messages behind the OK of a SUB, which is being written."""
        later, worker.later = worker.later or [], None
        self._loop.call_soon(self._go_on, worker, later)

    def _go_on(self, worker: WorkerLink, later: list[bytes]) -> None:
        if not self.closed:
            if later:
                self._received(worker, later)
            if worker.later is None and not self._unread():
                worker.link.resume()

    def _lost(self, place: Place, worker: WorkerLink) -> None:
        """Handle that a worker has closed the connection, or died."""
        if self.open.get(place) is worker:
            del self.open[place]
        if self._loss is not None:
            self._loss.gone(place)
        if not worker.link.reached:
            self._unreached_until[place] = self._loop.time() + UNREACHED_S
            self._refuse(place, worker, list(worker.expected))
        elif not self._placement.passes_on and not worker.subscribed:  # a group may be away for seconds: the client stays
            self._refuse(place, worker, [expected for expected in worker.expected if expected.share is not None])
        missing = [expected.held for expected in worker.expected if expected.held is not None]
        for expected in list(worker.expected):
            if expected.spread is not None:
                expected.spread.lost(place)
        for waits in worker.waiting:
            waits.unreached(place)
        for held in missing:
            self.lost_reply(held)
        lost = [name for name in worker.subscribed if (one := self.spread.get(name)) is None or not one.left(place)]
        if not missing and lost and not (worker.link.finishing or self.shutting_down or self.closed):
            self.abort()

    def _refuse(self, place: Place, worker: WorkerLink, unanswered: Sequence[Expected]) -> None:
        """Reply with an error to commands that a place has not answered, and that certainly did nothing, or change nothing."""
        error = self.away(place, worker.link)
        for expected in unanswered:
            if expected.spread is not None:
                continue
            worker.expected.remove(expected)
            if expected.unsent is not None:
                expected.unsent()
            if expected.share is not None:
                expected.share(encode_error(error))
            elif expected.held is not None:
                self._replies.fail(expected.held, error, expected.left)

    def away(self, place: Place, link: PlaceLink) -> PlacementUnknown:
        """The error for a worker or group without a connection."""
        problem = self._placement.problem_of(place)
        why = problem or "does not answer, so its topics are not known: try again"
        if link.refusal:
            why = f"refuses this node: {link.refusal}"
        return PlacementUnknown(f"{named(place)} {why}")

    def end_soon(self, begin: int) -> None:
        self._loop.call_soon(self.abort)

    def lost_reply(self, held: PendingReply | None) -> None:
        """End the session at a reply that is missing: the client would take a later one for it."""
        if held is None:
            self.abort()
            return

        def cut() -> None:
            held.make = None
            self._loop.call_soon(self.abort)

        self._replies.fill(held, cut)

    def settled(self) -> None:
        """Note that the client settles something."""
        for one in self.spread.values():
            one.in_hand.settled()

    # -- as the ``Session`` of a subscription that is everywhere

    @property
    def lacks(self) -> list[str]:
        """The names of the workers or groups that are away, and whose messages a subscription therefore lacks."""
        missing = {place for one in self.spread.values() for place in one.missing}
        return [named(place) for place in sorted(missing, key=str)]

    @property
    def is_leaving(self) -> bool:
        """Whether the session is leaving, so that places that are away are not asked again."""
        return self.finishing or self.closed or self.shutting_down

    def is_place(self, place: Place) -> bool:
        """Whether a worker or group still exists."""
        return place in self._placement.places()

    def reach(self, place: Place, subscription: SpreadSubscription) -> bool:
        """Connect to a place for a subscription. Returns: whether the place has answered on that connection already."""
        worker = self.to(place, subscription.command)
        if not worker.link.reached:
            worker.waiting.append(subscription)
        return worker.link.reached

    def subscribe_at(self, place: Place, subscription: SpreadSubscription) -> None:
        """Send a subscription's SUB to a place; the subscription gets the answer."""
        command = subscription.command
        expected = Expected(None, 1, command.topic, partial(subscription.heard, place), spread=subscription)
        self.send(self.to(place, command), [encode_command(command)], expected)

    def deliver(self, place: Place) -> None:
        """Pass on the messages of a place that came behind the OK of a SUB."""
        if (worker := self.open.get(place)) is not None:
            self.released(worker)

    def withdraw(self, place: Place, subscription: SpreadSubscription, *, uncounted: bool) -> None:
        """End a subscription at a place, if it has one, and pass on nothing more of it."""
        command = subscription.command
        worker = self.open.get(place)
        if worker is None:
            return
        if (found := worker.subscribed.get(command.topic)) is not None:
            found.wanted = False
        elif all(expected.spread is not subscription for expected in worker.expected):
            return
        end = encode_command(Unsubscribe(command.topic, command.consumer, uncounted))
        self.send(worker, [end], Expected(None, 1, ends=command.topic))

    # -- the session

    def resume(self) -> None:
        """Read from the workers or groups again, since the client reads again."""
        for worker in self.open.values():
            if worker.later is None:
                worker.link.resume()

    def finish(self) -> None:
        """Send no more commands: the workers or groups end their waits, answer, and close."""

        def finish() -> None:
            for worker in self.open.values():
                worker.link.finish()

        self._settle_loss(finish)

    def close(self) -> None:
        """Close: the session has ended. Its leases at other workers end as soon as it is known which message counts an
        attempt."""
        if self.closed:
            return
        self.closed = True
        if self._watch is not None:
            self._watch.cancel()
        for spread in self.spread.values():
            spread.ask_no_more()
        for worker in self.open.values():
            for one in worker.subscribed.values():
                one.wanted = False
            for expected in worker.expected:
                expected.forget()
            later, worker.later = worker.later or [], None
            self._received(worker, later)
            worker.link.resume()
        self._settle_loss(self._close)

    def _close(self) -> None:
        for worker in self.open.values():
            worker.link.close()
        self.open.clear()

    def _settle_loss(self, then: Callable[[], None]) -> None:
        """Decide which message counts; see ``LostSession``. Done once, whatever ends the session."""
        if self._loss is None:
            several = [spread for spread in self.spread.values() if len(spread.joined) > 1]
            self._loss = LostSession(several, self.ask, self._loop, then)
            self._loss.begin(uncounted=self.shutting_down)
        elif self._loss.is_done:
            then()
        else:
            self._loss.done = then

    def ask(self, place: Place, command: Command, heard: Callable[[bytes], None], *, ends: str | None = None) -> None:
        """Send a command to a place; ``heard`` gets the answer. See ``in_hand.Ask``."""
        worker = self.open.get(place)
        if worker is None:
            self._loop.call_soon(heard, b"")
        else:
            self.send(worker, [encode_command(command)], Expected(None, 1, share=heard, ends=ends, last=True))
