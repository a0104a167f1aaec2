"""Checks that all places (workers or groups) answer before the first one makes a change that all have to make. ADR 0270.

A change of a partitioned topic is made by each worker, or group. While one of them is away the change would be done in part,
and what PURGE has dropped is gone for good. So each of the others has to take a connection first. This is a new connection: on
the session's own connection the answer would come behind those of waiting commands, such as a PULL.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from toymq_py.errors import RequestError
from toymq_py.placement import Place, PlaceLink, Placement
from toymq_py.protocol import Command
from toymq_py.session.place_links import PlaceLinks
from toymq_py.session.replies import PendingReply, Replies
from toymq_py.session.stages import in_words, part_of, undone, words_of


class AllThere:
    """The check that all workers or groups answer, for one command. Belongs to the loop."""

    def __init__(
        self, command: Command, held: PendingReply, begin: Callable[[], None], links: PlaceLinks, replies: Replies
    ) -> None:
        """
        Args:
            held: the queued reply, which says that nothing was done if a worker or group is away.
            begin: called when all answer; it asks them for the change. Raises: PlacementUnknown when nothing was sent.
        """
        self._command = command
        self._held = held
        self._begin = begin
        self._links = links
        self._replies = replies
        self._asked: dict[Place, PlaceLink] = {}
        self._waiting: set[Place] = set()

    def ask(self, placement: Placement, places: Sequence[Place], loop: asyncio.AbstractEventLoop) -> None:
        """Connect to these workers or groups, except this process; if one is known to be away, to none. A connection gives up
        by itself, after 4 s for a group and 20 s for a worker."""
        try:
            placement.check_led(part_of(self._command), words_of(self._command))
            for place in places:
                if place != placement.here:
                    self._asked[place] = self._links.connected(place, lambda frames: None, partial(self._lost, place))
        except RequestError as error:
            self._close()
            self._fail(error)
            return
        self._waiting = set(self._asked)
        for place, link in self._asked.items():
            link.on_reached = partial(self._reached, place, loop)
        if not self._waiting:
            self._go()

    def _reached(self, place: Place, loop: asyncio.AbstractEventLoop) -> None:
        self._waiting.discard(place)
        if not self._waiting:
            loop.call_soon(self._go)  # the link is in the middle of something

    def _go(self) -> None:
        if self._waiting:  # one was lost since
            return
        self._close()
        if self._links.closed:  # the session has ended
            return
        try:
            self._begin()
        except RequestError as error:
            self._fail(error)

    def _lost(self, place: Place) -> None:
        self._waiting.add(place)
        link = self._asked[place]
        self._close()
        if not self._links.closed:
            self._fail(self._links.away(place, link))

    def _close(self) -> None:
        for link in self._asked.values():
            link.close()

    def _fail(self, error: RequestError) -> None:
        self._replies.fail(self._held, in_words(error, partial(undone, self._command)))
