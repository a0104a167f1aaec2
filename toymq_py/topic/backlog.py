"""The backlog of a topic, and the limits on it.

Contract: delivery.md, "Backlog limits": the backlog is the retained messages that some consumer has not acked; without a
consumer, all retained messages. ADR 0018. Belongs to the event loop.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate

from toymq_py.clock import Clock
from toymq_py.config.topic_settings import TopicSettings
from toymq_py.consumer import CommonAcks, Consumer
from toymq_py.errors import PayloadTooLarge, QueueFull, RequestError
from toymq_py.records import IdRange
from toymq_py.storage.commit.committer import Committer
from toymq_py.storage.log import Log
from toymq_py.topic.channel import Channel

UNLIMITED = 1 << 62
RECOUNT_SHARE_MAX = 0.05
"""The share of a core that exact counts of a full backlog may take; between them it is as full as it was counted last."""
RANGES_MAX = 512
"""Most ranges that are looked up in the index; 3 ms."""
CHEAP_RECOUNT_S = 0.001
"""The duration up to which a count is always made."""


class Backlog:
    """The unacked ids of a topic: those that some consumer has not acked, due or not, since scheduled messages take space, too.
    Exact in messages; in bytes as exact as ``Log.bytes_between``."""

    def __init__(self, log: Log, channels: Mapping[str, Channel]) -> None:
        """``channels``: the topic's own mapping, which changes as consumers come and go."""
        self._log = log
        self._channels = channels
        self._common: CommonAcks | None = None  # where there is a limit, and more than one consumer

    def track(self) -> None:
        """Keep the common acks of all consumers, so that frequent counts are cheap. Call it again after a consumer was made,
        removed or moved."""
        self.untrack()
        if len(self._channels) > 1:
            self._common = Consumer.track_common_acks(self._consumers())

    def untrack(self) -> None:
        """Stop the incremental count: counts are not frequent any more."""
        self._common = None
        for consumer in self._consumers():
            consumer.untrack()

    def _consumers(self) -> list[Consumer]:
        return [channel.consumer for channel in self._channels.values()]

    def _views(self) -> Sequence[Consumer | CommonAcks]:
        return self._consumers() if self._common is None else (self._common,)

    def ranges(self, first: int, limit: int) -> Iterator[IdRange]:
        """The unacked ids from ``first`` on and below ``limit``, as ascending ranges that do not touch."""
        consumers = self._views()
        if not consumers:
            yield from self._log.retained(first, limit)
            return
        while first < limit:
            found = [span for consumer in consumers if (span := consumer.next_unacked(first, limit)) is not None]
            if not found:
                return
            begin, last = min(found, key=lambda span: (span[0], -span[1]))
            grown = len(consumers) > 1
            while grown and last + 1 < limit:
                grown = False
                for consumer in consumers:
                    span = consumer.next_unacked(last + 1, limit)
                    if span is not None and span[0] == last + 1:
                        last, grown = span[1], True
            yield begin, last
            first = last + 1

    def messages(self, first: int, limit: int) -> int:
        """How many unacked ids there are from ``first`` on and below ``limit``."""
        consumers = self._views()
        if consumers and first <= (lowest := min(consumer.floor for consumer in consumers)):
            most = max(consumer.unacked(limit) for consumer in consumers)
            if len(consumers) == 1 or most == limit - lowest:  # the slowest has acked nothing out of its turn
                return most
        return sum(last - first + 1 for first, last in self.ranges(first, limit))

    def bytes(self, first: int, limit: int) -> int:
        """How many bytes on disk the unacked records from ``first`` on and below ``limit`` take. After ``RANGES_MAX`` ranges
        the rest is estimated from the average size."""
        size = count = 0
        for walked, (begin, last) in enumerate(self.ranges(first, limit)):
            if walked == RANGES_MAX:
                rest = self.messages(first, limit) - count
                return size + self._log.bytes_between(begin, limit) * rest // (limit - begin)
            size += self._log.bytes_between(begin, last + 1)
            count += last + 1 - begin
        return size


class BacklogLimit:
    """Refuses publishes beyond the limit, or drops the oldest messages when a commit exceeds it (``when_full``).

    Admitted messages are subtracted from the room that the last exact count found. Acks only add room, so another count is
    needed only when the room is used up, and after anything that may reduce it: a new consumer, SEEK, FORGET.
    """

    def __init__(
        self,
        name: str,
        log: Log,
        committer: Committer,
        backlog: Backlog,
        clock: Clock,
        settings: TopicSettings,
        drop_below: Callable[[int], None],
    ) -> None:
        """``name`` is the topic's. ``drop_below`` drops the backlog's messages below an id."""
        self._name = name
        self._log = log
        self._committer = committer
        self._backlog = backlog
        self._clock = clock
        self._drop_below = drop_below
        self._rejects = settings.when_full != "drop-oldest"
        self._messages_max = UNLIMITED if settings.backlog_max_messages is None else settings.backlog_max_messages
        self._bytes_max = UNLIMITED if settings.backlog_max_bytes is None else settings.backlog_max_bytes
        self._room = 0
        self._room_bytes = 0
        self._recount_after = 0.0

    @staticmethod
    def wanted(settings: TopicSettings) -> bool:
        """Whether the settings limit the backlog at all."""
        return settings.backlog_max_messages is not None or settings.backlog_max_bytes is not None

    # -- before an append

    def fits(self, count: int, size: int) -> bool:
        """Whether a whole run of messages is surely admitted, without an exact count. ``size``: encoded, in bytes."""
        if not self._rejects:
            return size <= self._bytes_max
        if count > self._room or size > self._room_bytes:
            return False
        self._room -= count
        self._room_bytes -= size
        return True

    def admit(self, sizes: Sequence[int]) -> tuple[int, int, RequestError | None]:
        """Decide which part of a run is appended.

        Args:
            sizes: the encoded size of each record, in bytes.

        Returns: how many records are admitted, how many behind them are refused, and why.
        """
        bytes_max = self._bytes_max
        large = next((row for row, size in enumerate(sizes) if size > bytes_max), len(sizes))
        fitting = self._take(sizes[:large]) if self._rejects else large
        if fitting < large:
            limit = (
                f"{self._messages_max} messages (backlog_max_messages)" if self._room <= 0
                else f"{bytes_max} bytes (backlog_max_bytes)"
            )  # fmt: skip
            return fitting, len(sizes) - fitting, QueueFull(f"the backlog of {self._name} has reached {limit}; publish later")
        if large < len(sizes):
            return large, 1, PayloadTooLarge(
                f"a record of {sizes[large]} bytes, and the backlog of {self._name} may have {bytes_max} (backlog_max_bytes)"
            )
        return len(sizes), 0, None

    def _take(self, sizes: Sequence[int]) -> int:
        if len(sizes) > self._room or sum(sizes) > self._room_bytes:
            self._recount_within_cost()
        ends = list(accumulate(sizes[: max(self._room, 0)]))
        count = bisect_right(ends, self._room_bytes)
        self._room -= count
        self._room_bytes -= ends[count - 1] if count else 0
        return count

    def _recount_within_cost(self) -> None:
        began = self._clock.monotonic()
        if began < self._recount_after:
            return
        self._recount(self._committer.next_id, self._committer.pending_bytes)
        cost_s = self._clock.monotonic() - began
        self._recount_after = began + cost_s / RECOUNT_SHARE_MAX if cost_s > CHEAP_RECOUNT_S else 0.0

    def _recount(self, next_id: int, pending_bytes: int) -> None:
        first_id, backlog = self._log.first_id, self._backlog
        if self._messages_max < UNLIMITED:
            self._room = self._messages_max - backlog.messages(first_id, next_id)
        else:
            self._room = UNLIMITED
        if self._bytes_max < UNLIMITED:
            self._room_bytes = self._bytes_max - backlog.bytes(first_id, self._log.committed_id) - pending_bytes
        else:
            self._room_bytes = UNLIMITED

    # -- afterwards

    def recount(self) -> None:
        """Count again before the next publish: the backlog may have grown without one."""
        self._room = self._room_bytes = 0
        self._recount_after = 0.0
        if not self._rejects:
            self._trim()

    def committed(self, first_id: int, next_id: int) -> None:
        """Drop the oldest messages beyond the limit, after a commit. Dropped before the commit, ids would be missing that are
        used again when it fails."""
        if self._rejects:
            return
        self._room -= next_id - first_id
        if self._bytes_max < UNLIMITED:
            self._room_bytes -= self._log.bytes_between(first_id, next_id)
        if self._room < 0 or self._room_bytes < 0:
            self._trim()

    def _trim(self) -> None:
        committed_id = self._log.committed_id
        self._recount(committed_id, 0)
        excess, excess_bytes = -self._room, -self._room_bytes
        if excess <= 0 and excess_bytes <= 0:
            return
        cut = self._log.first_id
        for first, last in self._backlog.ranges(cut, committed_id):
            if excess <= 0 and excess_bytes <= 0:
                break
            cut = min(self._behind(first, excess, excess_bytes), last + 1)
            excess -= cut - first
            excess_bytes -= self._log.bytes_between(first, cut)
        self._drop_below(cut)
        self._recount(committed_id, 0)

    def _behind(self, first: int, excess: int, excess_bytes: int) -> int:
        """The first id that has at least ``excess`` ids and ``excess_bytes`` bytes between ``first`` and itself."""
        bytes_between = self._log.bytes_between
        low, high = first + max(excess, 1), self._log.committed_id
        while low < high and bytes_between(first, low) < excess_bytes:  # a bisection: bytes ascend with the ids
            middle = (low + high) // 2
            if bytes_between(first, middle) < excess_bytes:
                low = middle + 1
            else:
                high = middle
        return low
