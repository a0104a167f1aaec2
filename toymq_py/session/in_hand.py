"""Finds which message a subscriber is working on, where its messages come from several workers or groups. ADR 0256, 0262.

Only that message counts an attempt when the client leaves or hangs. Each place knows only its own messages, and tells which one
of them the client most likely works on (HELD); when the session's leases end by their deadlines, the place counts an attempt
for that one. So while the client settles nothing, the places that do not have the message are told that theirs come after it
(``HELD … uncounted=1``).
"""

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from toymq_py.placement import Place
from toymq_py.protocol import Command, Held, Subscribe
from toymq_py.session.arrivals import Arrivals

LOOK_MIN_S, LOOK_MAX_S = 0.5, 5.0
"""The time between two looks, while nothing is settled; doubled each time."""
LOOKS_PER_LEASE = 4
"""Least number of looks in the time of a lease, where the SUB says how long its leases are."""
LOOK_LEAST_S = 0.1
"""The shortest time between looks that ``LOOKS_PER_LEASE`` makes."""

Heard = Callable[[bytes], None]
Message = tuple[bytes, bytes]
"""Topic and id of a message."""
Messages = dict[Place, Message]
"""By place, the message that the client most likely works on."""


class Ask(Protocol):
    def __call__(self, place: Place, command: Command, heard: Heard, *, ends: str | None = None) -> None:
        """Send a command to a place; ``heard`` gets the answer, unless the connection is lost."""


class InHand:
    """The search for the message that the client of one subscription works on. Belongs to the loop."""

    __slots__ = ("_arrivals", "_ask", "_asking", "_behind", "_closed", "_command", "_delay_max_s", "_delay_s", "_known",
                 "_loop", "_places", "_settled", "_since", "_timer", "uncounted")  # fmt: skip

    def __init__(self, command: Subscribe, places: list[Place], ask: Ask, loop: asyncio.AbstractEventLoop) -> None:
        """``places``: the workers or groups that have the subscription; the caller changes the list."""
        self._command = command
        self._places = places
        self._ask = ask
        self._loop = loop
        self._arrivals = Arrivals()
        self._known: tuple[Place, Message] | None = None
        """The message of the last look, while nothing has been settled since."""
        self._since = 0
        """Messages with lower positions in ``Arrivals`` stood behind one that a place has taken back."""
        self._behind: set[Place] = set()
        """The places that were told that their messages count no attempt (HELD)."""
        self.uncounted = False
        """Whether the client has said that none counts (HELD)."""
        lease_s = (command.visibility_ms or 1000 * LOOK_MAX_S * LOOKS_PER_LEASE) / 1000
        self._delay_max_s = min(max(lease_s / LOOKS_PER_LEASE, LOOK_LEAST_S), LOOK_MAX_S)
        self._delay_s = min(LOOK_MIN_S, self._delay_max_s)
        self._timer: asyncio.TimerHandle | None = None
        self._asking = self._closed = False
        self._settled = False
        """Whether something was settled since the last look."""

    def came(self, frame: bytes) -> None:
        """Note that a message has come from a worker or group; ``frame`` is its MSG frame."""
        self._arrivals.note(frame)
        if self._timer is None and len(self._places) > 1 and not (self._asking or self._closed):
            self._look_later(LOOK_MIN_S)

    def settled(self) -> None:
        """Note that the client has settled a message, so it does not hang."""
        self._settled = True
        if self._known is not None or self._since:
            self._known, self._since = None, 0
            self._tell(set())

    def close(self) -> None:
        """Stop the search. Idempotent."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def first(self, answers: Mapping[Place, bytes]) -> Place | None:
        """The place, among those that answered HELD, with the message that the client works on: the message that the last look
        found, if it is still held, otherwise the one that came first. None when no place holds a message, or only messages that
        came before the client lost the one it worked on."""
        held = _messages(answers)
        if self._knows(held):
            assert self._known is not None
            return self._known[0]
        since = self._since if self._known is None else self._arrivals.count
        came = {place: self._arrivals.place_of(*message) for place, message in held.items()}
        return min((place for place, at in came.items() if at >= since or not since), key=came.__getitem__, default=None)

    def _knows(self, held: Messages) -> bool:
        """Whether the client still holds the message that the last look found."""
        known = self._known
        return known is not None and held.get(known[0]) == known[1]

    def _look_later(self, delay_s: float) -> None:
        self._delay_s = min(delay_s, self._delay_max_s)
        self._timer = self._loop.call_later(self._delay_s, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._settled:
            self._settled = False
            self._look_later(LOOK_MIN_S)
            return
        command, places, answers = self._command, list(self._places), dict[Place, bytes]()
        self._asking = True
        for place in places:
            self._ask(place, Held(command.topic, command.consumer), partial(self._heard, places, answers, place))

    def _heard(self, places: list[Place], answers: dict[Place, bytes], place: Place, answer: bytes) -> None:
        answers[place] = answer
        if len(answers) < len(places) or self._closed:
            return
        self._asking = False
        if self._settled:  # meanwhile
            self._look()
            return
        held, first = _messages(answers), self.first(answers)
        if self._known is not None and not self._knows(held):
            self._since = self._arrivals.count
        self._known = None if first is None else (first, held[first])
        if held or self._since:
            self._tell({other for other in places if other != first})
        if held:
            self._look_later(2 * self._delay_s)

    def says(self, *, uncounted: bool) -> None:
        """Note that the client itself tells all places whether its messages count an attempt (HELD)."""
        self.uncounted, self._behind = uncounted, set()

    def _tell(self, behind: set[Place]) -> None:
        if self.uncounted:
            return
        for place in behind ^ self._behind:
            self._ask(place, Held(self._command.topic, self._command.consumer, place in behind), lambda answer: None)
        self._behind = behind


def _messages(answers: Mapping[Place, bytes]) -> Messages:
    """Parse the reply to HELD: ``OK <count> [<topic> <id>]``."""
    found = [(answer.split(), place) for place, answer in answers.items() if answer.startswith(b"OK")]
    return {place: (words[2], words[3]) for words, place in found if len(words) == 4}
