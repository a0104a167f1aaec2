"""Renewal of a subscription's leases on an event loop: the asyncio client's own, or that of the blocking client's thread."""

import asyncio
from collections.abc import Callable, Iterable, Sequence

from toymq import requests
from toymq.conversation import Conversation
from toymq.delivery_window import Feed, FeedState
from toymq.message import lines_of, to_ranges
from toymq_py.records import MSG_ID_MAX, IdRange

EXTENDS_PER_LEASE = 3
"""Renewals within the time of a lease: two of them may be late."""
UNREAD_TOPICS_MAX = 128
"""A subscription that has seen more topics renews what is still unread in those alone of which it holds something."""


class Renewal:
    """Renews the leases of all unsettled deliveries of a feed until ``stop``, or until the broker ends the subscription.

    Owns a timer. It only reads the feed, which may belong to another thread.
    """

    def __init__(
        self, feed: Feed, conversation: Callable[[], Conversation], visibility_s: float, loop: asyncio.AbstractEventLoop,
        *, with_unread: bool = False,
    ) -> None:  # fmt: skip
        """
        Args:
            conversation: returns the conversation of the connection that sends TOUCH; any connection may renew a lease.
            with_unread: also renew the leases of messages that the client has not read from its socket yet, if the broker knows
                lease numbers.
        """
        self._feed = feed
        self._conversation = conversation
        self._visibility_s = visibility_s
        self._loop = loop
        self._with_unread = with_unread
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to renew. Idempotent."""
        if self._timer is None:
            self._timer = self._loop.call_later(self._visibility_s / EXTENDS_PER_LEASE, self._renew)

    def stop(self) -> None:
        """Stop renewing. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _renew(self) -> None:
        self._timer = None
        if self._feed.state is FeedState.ENDED:
            return
        self.start()  # first: an error below does not end the renewals
        conversation = self._conversation()
        consumer, lease = self._feed.command.consumer, conversation.lease_of(self._feed)
        by_topic: dict[str, list[int]] = {}
        for topic, msg_id in self._feed.leased():
            by_topic.setdefault(topic, []).append(msg_id)
        with_unread = self._with_unread and lease is not None
        if with_unread:
            for topic in self._feed.seen_topics(UNREAD_TOPICS_MAX):
                by_topic.setdefault(topic, [])
        for topic, ids in by_topic.items():
            lines: Iterable[Sequence[IdRange]] = lines_of(to_ranges(ids))
            if with_unread:  # what comes again has a lower id than what is held
                lines = (((0, MSG_ID_MAX),),)
            for line in lines:
                conversation.send_now(requests.touch(topic, consumer, line, self._visibility_s, lease=lease).slot)
