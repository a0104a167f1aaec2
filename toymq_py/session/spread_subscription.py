"""A SUB of a pattern, or of a partitioned topic: each worker or group has some of its topics. ADR 0157, 0224.

    reached ──► asked ──OK──► joined: what it delivers is passed on, once the client has its own OK
     ▲           │
     │           └─ lost, or shuts down, before it has answered ──► away ─┐
     └────────────────────── after a time, which grows ───────────────────┘

No place is asked before all are reached, or ``PATIENCE_S`` is over: while one hangs, deliveries of the others would have to
wait here while their leases run (ADR 0239). The client gets its ``OK`` when all have answered, or when some have and that time
is over; places that are away join later. A refusal is the reply; after the ``OK`` it ends the session, so that the client
subscribes again and gets the refusal as the reply. The loss of a place after the ``OK`` also ends the session: its leased
messages are ready there again, and only the end of the connection tells the client so.
"""

import asyncio
import enum
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from toymq_py.errors import PlacementUnknown, RequestError, ShuttingDown
from toymq_py.placement import Place, named
from toymq_py.protocol import Command, Subscribe, encode_error
from toymq_py.session.gathering import Gathering
from toymq_py.session.in_hand import Heard, InHand

logger = logging.getLogger("toymq_py.session")

PATIENCE_S = 2.0
"""How long a SUB waits for all places: most failovers are over by then, and a client leaves a broker that owes an answer for 5
s."""
RETRY_MIN_S, RETRY_MAX_S = 0.1, 2.0
"""The time between two attempts to reach a place that is away. An attempt at a group without a leader takes some seconds
more."""
AWAY = b"ERR SHUTTING_DOWN", b"ERR NOT_LEADER"
"""The beginnings of the answer of a place that another process, or another leader, replaces soon."""


class Session(Protocol):
    """The methods of a session's ``PlaceLinks`` that a spread subscription calls."""

    shutting_down: bool
    """Whether the broker ends."""

    @property
    def is_leaving(self) -> bool:
        """Whether the session is leaving, so that places that are away are not asked again."""

    def is_place(self, place: Place) -> bool:
        """Whether a worker or group still exists."""

    def reach(self, place: Place, subscription: "SpreadSubscription") -> bool:
        """Whether there is a connection to a place that has answered. If not, ``reached`` or ``unreached`` is called later.
        Raises: RequestError when it cannot be reached."""

    def subscribe_at(self, place: Place, subscription: "SpreadSubscription") -> None:
        """Send the SUB to a place; ``heard`` or ``lost`` is called with the outcome. Raises: RequestError when it cannot be
        reached."""

    def deliver(self, place: Place) -> None:
        """Pass on the messages of a place that came behind the OK of its SUB."""

    def withdraw(self, place: Place, subscription: "SpreadSubscription", *, uncounted: bool) -> None:
        """End the subscription at a place, if it has one, and pass on nothing more of it."""

    def ask(self, place: Place, command: Command, heard: Heard, *, ends: str | None = None) -> None:
        """Send a command to a place; ``heard`` gets the answer. See ``in_hand.Ask``."""

    def abort(self) -> None:
        """End the session."""


class _Phase(enum.Enum):
    REACHING = "no place is asked yet"
    ASKING = "the client has no reply yet"
    REPLIED = "its OK is not written yet"
    DELIVERING = "deliveries are passed on"
    ENDED = "it was refused, has ended, or the session has"


class SpreadSubscription:
    """One subscription at several workers or groups; ``begin`` starts it. Belongs to the loop."""

    def __init__(
        self, command: Subscribe, places: Collection[Place], gathering: Gathering, session: Session,
        loop: asyncio.AbstractEventLoop, reply: Callable[[bytes], None], given_up: Collection[Place] = (),
    ) -> None:  # fmt: skip
        """
        Args:
            places: all workers or groups; ``gathering`` merges their answers.
            reply: gets the reply, once.
            given_up: places that another subscription of the session lacks, or that are known to be away: they are asked, but
                not waited for.
        """
        self.command = command
        self.joined: list[Place] = []
        self.in_hand = InHand(command, self.joined, session.ask, loop)
        self._missing = dict.fromkeys(places, RETRY_MIN_S)  # how long to wait before the next question, by place
        self._reached: set[Place] = set()
        self._gathering = gathering
        self._session = session
        self._loop = loop
        self._reply = reply
        self._given_up = given_up
        self._refusal = b""
        self._phase = _Phase.REACHING
        self._written: list[Callable[[], None]] = []
        self._timers: dict[Place | None, asyncio.TimerHandle] = {}

    @property
    def has_ended(self) -> bool:
        """Whether the subscription has ended, so that messages that still arrive for it are dropped."""
        return self._phase is _Phase.ENDED

    @property
    def missing(self) -> Collection[Place]:
        """The workers or groups that have not answered."""
        return self._missing.keys()

    def begin(self) -> None:
        """Connect to all workers or groups, and send them the SUB once they are reached."""
        self._timers[None] = self._loop.call_later(PATIENCE_S, self._wait_no_longer)
        for place in list(self._missing):
            if self._phase is _Phase.REACHING:  # else all are asked
                self._ask(place)

    def when_written(self, call: Callable[[], None]) -> None:
        """Call ``call`` when the reply to the client's SUB is written."""
        self._written.append(call)

    def released(self, begin: int) -> None:
        """Note that the reply to the client's SUB is being written."""
        if self._phase is _Phase.REPLIED:
            self._phase = _Phase.DELIVERING
        for place in self.joined:
            self._session.deliver(place)
        for call in self._written:
            call()

    # -- what places answer

    def reached(self, place: Place) -> None:
        """Note that a worker or group has answered on its connection, so that it would answer the SUB."""
        if self._phase is _Phase.REACHING:
            self._reached.add(place)
            self._settle()

    def unreached(self, place: Place) -> None:
        """Note that the connection to a place ended before the place answered at all. For a place that had been sent the SUB,
        ``lost`` is called."""
        if self._phase is _Phase.REACHING:
            self.lost(place)

    def heard(self, place: Place, answer: bytes) -> None:
        """Note that a place has answered the SUB."""
        if self._phase is _Phase.ENDED:
            if answer.startswith(b"OK"):
                self._loop.call_soon(self._session.deliver, place)  # nothing but the reply to its UNSUB, which was sent
            return
        if answer.startswith(AWAY):
            self._refusal = answer
            self.lost(place)
            return
        del self._missing[place]
        self._gathering.add(place, answer)
        if not answer.startswith(b"OK"):
            if self._phase is not _Phase.ASKING:
                logger.warning("%s: %s refuses it: %s", self._named, named(place), answer.decode().rstrip())
                self._session.abort()
                return
        else:
            self.joined.append(place)
            if self._phase is not _Phase.ASKING:
                logger.info("%s has %s, too, now", self._named, named(place))
            if self._phase is _Phase.DELIVERING:
                self._loop.call_soon(self._session.deliver, place)
        self._settle()

    def lost(self, place: Place) -> None:
        """Note that there is no connection, or none any more, to a place that has not answered."""
        if self._phase is _Phase.ENDED:
            return
        if self._session.is_leaving:
            self._drop(place)
            return
        delay_s = self._missing[place]
        self._missing[place] = min(2 * delay_s, RETRY_MAX_S)
        self._timers[place] = self._loop.call_later(delay_s, self._ask, place)

    def left(self, place: Place) -> bool:
        """Note that the connection to a joined place has ended. Returns: whether the client had no message of that place yet;
        then the place is asked again, as if it had not answered."""
        if self._phase not in (_Phase.ASKING, _Phase.REPLIED):
            return False
        self.joined.remove(place)
        del self._gathering.replies[place]
        self._missing[place] = RETRY_MIN_S
        self.lost(place)
        return True

    def _ask(self, place: Place) -> None:
        self._timers.pop(place, None)
        if self._session.is_leaving or not self._session.is_place(place):  # an empty group may be removed from its cluster
            self._drop(place)
            return
        try:
            if self._phase is not _Phase.REACHING:
                self._session.subscribe_at(place, self)
            elif self._session.reach(place, self):
                self.reached(place)
        except RequestError as error:
            self._refusal = encode_error(error)
            self.lost(place)

    def _drop(self, place: Place) -> None:
        del self._missing[place]
        self._settle()

    # -- its reply

    def _wait_no_longer(self) -> None:
        self._given_up = [place for place in self._missing if self._phase is _Phase.ASKING or place not in self._reached]
        self._settle()

    def ask_now(self) -> None:
        """Send the SUB to all places, reached or not: the client has ended its stream, so there is no later occasion."""
        if self._phase is _Phase.REACHING:
            self._ask_all()

    def _ask_all(self) -> None:
        self._phase = _Phase.ASKING
        self._timers.pop(None).cancel()
        self._timers[None] = self._loop.call_later(PATIENCE_S, self._wait_no_longer)
        for place in list(self._missing):
            if place not in self._timers:  # else it is asked later
                self._ask(place)

    def _settle(self) -> None:
        """Send the SUB to the places, or reply to the client, once enough places are reached or have answered."""
        if self._phase is _Phase.REACHING:
            if any(place not in self._given_up and place not in self._reached for place in self._missing):
                return
            self._ask_all()
        if self._phase is not _Phase.ASKING:
            return
        if self._missing and (not self._gathering.replies or any(place not in self._given_up for place in self._missing)):
            return
        self._timers.pop(None).cancel()
        refusal = self._gathering.refusal or (b"" if self.joined else self._refusal or encode_error(self._none_answers()))
        if refusal:
            self.end(uncounted=True)
            self._reply(refusal)
            return
        self._phase = _Phase.REPLIED
        for place in self._missing:
            logger.warning("%s goes on without %s until that answers", self._named, named(place))
        self._reply(self._gathering.total())

    def _none_answers(self) -> RequestError:
        if self._session.shutting_down:
            return ShuttingDown("the broker is shutting down")
        return PlacementUnknown("nothing that may have its topics answers: try again")

    @property
    def _named(self) -> str:
        return f"the subscription of {self.command.consumer} to {self.command.topic}"

    def without_first(self, answers: Mapping[Place, bytes]) -> list[Place]:
        """The places that answered HELD, except the one that has the message which the client most likely works on."""
        first = self.in_hand.first(answers)
        return [place for place, answer in answers.items() if answer.startswith(b"OK") and place != first]

    def held(self, gathered: Gathering) -> bytes:
        """The reply to HELD, made from the replies of all places."""
        first = self.in_hand.first(gathered.replies)
        whose = b"" if first is None or gathered.refusal else b" " + gathered.replies[first].split(b" ", 2)[2].rstrip()
        return gathered.total().rstrip() + whose + b"\n"

    # -- its end

    def end(self, *, uncounted: bool = False) -> None:
        """End the subscription at all places; with ``uncounted`` their messages count no attempt."""
        self.close()
        for place in [*self.joined, *self._missing]:
            self._session.withdraw(place, self, uncounted=uncounted)

    def ask_no_more(self) -> None:
        """Stop sending the SUB to more places: the subscription is being ended where it has joined."""
        self.close()
        for place in self._missing:
            self._session.withdraw(place, self, uncounted=True)

    def close(self) -> None:
        """Close the subscription and stop its timers. Idempotent."""
        self._phase = _Phase.ENDED
        self.in_hand.close()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
