"""Asks the broker whether this client still holds the leases of the messages that wait in a subscription's window. Sans-IO. ADR
0092."""

from collections.abc import Callable, Iterator
from itertools import groupby

from toymq.delivery_window import Feed
from toymq.message import lines_of, to_ranges
from toymq.pending_replies import CallSlot
from toymq_py.protocol import OkReply, Reply, Touch
from toymq_py.records import IdRange

ROUNDS_MAX = 3
"""Most questions to the broker before one message, where more messages have come meanwhile that waited elsewhere."""
ANSWER_S = 1.0
"""The time for an answer, in seconds, whatever the time-out of ``next``: with one of 0 nothing would ever be confirmed."""


class _Touch(CallSlot):
    """A TOUCH command (renew leases) for message ids that wait in a subscription's window."""

    def __init__(self, feed: Feed, topic: str, ids: tuple[IdRange, ...], lease: int) -> None:
        super().__init__(Touch(topic, feed.command.consumer, ids, None, lease), OkReply)
        self.topic = topic
        self._feed = feed
        self._ids = ids

    def answered(self, reply: Reply) -> None:
        super().answered(reply)
        if len(self._ids) == 1 and self._ids[0][0] == self._ids[0][1] and self.lacks_some:
            self._feed.drop(self.topic, self._ids[0][0])  # now: a delivery that comes behind the answer is ours

    @property
    def is_answered(self) -> bool:
        return isinstance(self.answer, OkReply)

    @property
    def lacks_some(self) -> bool:
        """Whether the broker answered that this client does not hold some of the leases."""
        count = sum(last - first + 1 for first, last in self._ids)
        return isinstance(self.answer, OkReply) and self.answer.value < count


def confirmation(feed: Feed, lease: int | None, now: Callable[[], float]) -> Iterator[list[CallSlot]]:
    """Renew the leases of all messages that wait in the window, and drop those that another worker has by now.

    The broker renews only leases with this feed's lease number. The first step sends TOUCH for ranges of ids, whose answers
    count the renewed leases. Where the count is too low, a second step sends TOUCH for each id, to learn which leases are lost.

    Args:
        lease: the number of the feed's leases; None for an older broker, which cannot tell whose a lease is: nothing is asked.
        now: the client's clock.

    Yields: commands that must be answered, or fail, before the next step. If one fails, nothing is confirmed: a lost connection
        drops the waiting messages, and the broker delivers them again.
    """
    feed.asked()
    if lease is not None:
        lines = [
            _Touch(feed, topic, line, lease)
            for topic, places in groupby(sorted(feed.waiting()), lambda place: place[0])
            for line in lines_of(to_ranges(msg_id for _, msg_id in places))
        ]
        yield list(lines)
        if not all(line.is_answered for line in lines):
            return
        doubtful = {line.topic for line in lines if line.lacks_some}
        singles = [_Touch(feed, topic, ((msg_id, msg_id),), lease) for topic, msg_id in feed.waiting() if topic in doubtful]
        if singles:
            yield list(singles)
        if not all(single.is_answered for single in singles):
            return
    feed.confirmed(now())
