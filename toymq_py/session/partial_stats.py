"""``STATS partial=1``: the figures of the workers or groups that answer soon, and the names of those that do not. ADR 0273.

Each place is asked over a connection of its own, which ends with the reply: a place that hangs holds up nothing else in this
session.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from toymq_py.errors import PlacementUnknown
from toymq_py.placement import Place, PlaceLink, named
from toymq_py.protocol import Stats, encode_command, encode_error, first_word
from toymq_py.session.gathering import Gathering

WITHIN_S = 2.0
"""The time in which a place has to answer: the dashboard waits so long, too."""

Connect = Callable[[Place, Callable[[list[bytes]], None], Callable[[], None]], PlaceLink]
"""Makes a connection to a place, which is greeted. Raises: PlacementUnknown."""
Later = Callable[[float, Callable[[], None]], asyncio.TimerHandle]
"""Calls a function after seconds."""


class PartialStats:
    """One partial STATS: ``begin`` it; ``done`` is called once, when ``make`` has a reply."""

    def __init__(
        self, places: Sequence[Place], gathering: Gathering, connect: Connect, problem_of: Callable[[Place], str], later: Later,
        done: Callable[[], None], charge: Callable[[int], None],
    ) -> None:  # fmt: skip
        """
        Args:
            gathering: merges the replies.
            problem_of: returns why a worker or group cannot answer, None if it may; see ``Placement.problem_of``.
            later: as ``call_later`` of an event loop.
            charge: called with the size of each reply in bytes, to count it for the connection.
        """
        self._places = places
        self._gathering = gathering
        self._connect = connect
        self._problem_of = problem_of
        self._later = later
        self._done = done
        self._charge = charge
        self._links: dict[Place, PlaceLink] = {}
        self._waited_for = set(places)
        self._why: dict[Place, str] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Ask all workers or groups."""
        self._timer = self._later(WITHIN_S, self._time_is_over)
        for place in self._places:
            if problem := self._problem_of(place):  # nothing is there that could answer
                self._is_away(place, problem)
                continue
            try:
                link = self._links[place] = self._connect(place, partial(self._heard, place), partial(self._lost, place))
                link.send([encode_command(Stats())])
            except PlacementUnknown as error:
                self._is_away(place, str(error).removeprefix(f"{named(place)} ").removesuffix(": try again"))

    def _heard(self, place: Place, frames: list[bytes]) -> None:
        for frame in frames:
            if first_word(frame) == b"HELLO" or place not in self._waited_for:
                continue
            if frame.startswith(b"ERR "):
                self._is_away(place, f"answers {frame[4:].decode().rstrip()}")
            else:
                self._charge(len(frame))
                self._gathering.add(place, frame)
                self._heard_of(place)

    def _lost(self, place: Place) -> None:
        refusal = self._links[place].refusal if place in self._links else ""
        self._is_away(place, f"refuses this node: {refusal}" if refusal else "does not answer")

    def _time_is_over(self) -> None:
        for place in list(self._waited_for):
            self._is_away(place, self._problem_of(place) or f"does not answer within {WITHIN_S:g} s")

    def _is_away(self, place: Place, why: str) -> None:
        if place in self._waited_for:
            self._why[place] = why
            self._heard_of(place)

    def _heard_of(self, place: Place) -> None:
        self._waited_for.remove(place)
        if not self._waited_for:
            self.close()
            self._done()

    def close(self) -> None:
        """Stop waiting for answers. Idempotent."""
        self._waited_for.clear()
        if self._timer is not None:
            self._timer.cancel()
        for link in self._links.values():
            link.close()

    @property
    def away(self) -> list[dict[str, Any]]:
        """The workers or groups that did not answer, in order, for the reply."""
        return [{"place": named(place), "why": self._why[place]} for place in self._places if place in self._why]

    def make(self) -> bytes | None:
        """The reply; None means: call again."""
        if not self._gathering.replies:
            why = "; ".join(f"{one['place']} {one['why']}" for one in self.away)
            return encode_error(PlacementUnknown(f"{why}: try again"))
        return self._gathering.stats(self.away)
