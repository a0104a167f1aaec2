"""Publishes of the blocking client: those that wait for receipts, and the iterator of ``pub_many``."""

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from toymq.arguments import Seconds
from toymq.client_base import ClientBase
from toymq.errors import RequestTimeout
from toymq.message import Item, Outgoing, Receipt, chunks
from toymq.mixups import PlainAwait, PlainFor
from toymq.options import OUTSTANDING_BYTES_MAX, UNANSWERED_MAX
from toymq.pending_publishes import Batch, Outcome, PublishMany, Stream
from toymq.sync.call_guard import CallGuard, one_thread
from toymq.sync.link import BlockingLink, now
from toymq_py.errors import ConnectionLost

PublishAll = Callable[[str, Iterable[Item], tuple[int | None, int | None], int, int], Iterator[Receipt]]


class Sent(Batch):
    """A batch of sent publishes. ``mended``: how often their conversation had been repaired by then; when that count grows, no
    answer will come."""

    __slots__ = ("mended", "stream")

    mended: int
    stream: Stream


def receipt_of(outcome: Outcome | None) -> Receipt:
    """Return the receipt of an outcome. Raises: the error of a failed publish, or ConnectionLost when there is no outcome."""
    if isinstance(outcome, Receipt):
        return outcome
    raise outcome or ConnectionLost("the outcome is unknown: an exception interrupted another call of this client")


class Publishing(PublishMany, PlainAwait, PlainFor):
    """An iterator of receipts, which publishes while it is iterated."""

    _called = "pub_many"

    def __init__(
        self, guard: CallGuard, publish: PublishAll, topic: str, items: Iterable[Item], delay: Seconds | None,
        ttl: Seconds | None, window: int,
    ) -> None:  # fmt: skip
        super().__init__(topic, items, delay, ttl, window, "iterate it; list(mq.pub_many(...)) publishes all")
        self._guard = guard
        self._receipts = publish(topic, self._items, self._times, self._window, self._size)

    def __iter__(self) -> Iterator[Receipt]:
        self._begun = True
        return self

    @one_thread
    def __next__(self) -> Receipt:
        self._begun = True
        return next(self._receipts)


class PublishingClient(ClientBase):
    """The part of the blocking client that publishes and waits for receipts.

    Unanswered publishes are bounded, also after their calls timed out: a publish without room waits. A publish that was not
    sent when its call timed out is dropped; one that was sent is not repeated, and its number is not used again.
    """

    _links: list[BlockingLink]
    _waiting_link: BlockingLink | None

    @abstractmethod
    def _home(self, topic: str) -> BlockingLink:
        """The connection to the worker that has a topic, if that worker is known; else the main connection."""

    @abstractmethod
    def _open_or_raise(self) -> None:
        """Check that the client is open. Raises: ClientClosed."""

    def _publish_many(
        self, topic: str, items: Iterable[Item], times: tuple[int | None, int | None], window: int, size: int
    ) -> Iterator[Receipt]:
        unanswered: deque[Sent] = deque()
        outstanding = 0
        block, adds = self._options.header_block_of_many(topic), self._options.adds_headers
        try:
            for chunk, error in chunks(items, size, self._body_bytes_max, block, adds, *times):
                unanswered.append(self._publish(topic, chunk, self._room(topic) if chunk else None))
                outstanding += len(chunk)
                self._home(topic).exchange(0.0)
                while unanswered and (outstanding > window - size or self._is_full(topic) or error is not None):
                    self._wait_for(topic, unanswered[0])
                    yield from map(receipt_of, unanswered[0].outcomes)
                    outstanding -= len(unanswered.popleft().outcomes)
                if error is not None:
                    raise error
            for batch in unanswered:
                self._wait_for(topic, batch)
                yield from map(receipt_of, batch.outcomes)
        except RequestTimeout:
            for batch in unanswered:  # their time is over, too
                batch.abandoned = True
            raise

    def _publish(self, topic: str, items: list[Outgoing], deadline: float | None) -> Sent:
        self._open_or_raise()
        batch = Sent(len(items), deadline, lambda: None)
        batch.stream = self._home(topic).conversation.publish(topic, items, batch)
        batch.mended = self._mended
        return batch

    def _room(self, topic: str) -> float:
        """Wait for room to publish. Returns: the deadline of the publish, which counts from before this wait. Raises:
        RequestTimeout."""
        deadline = now() + self._options.timeout_s
        if self._is_full(topic):
            for link in self._links:
                link.conversation.drop_done()
        while self._is_full(topic) and not (link := self._home(topic)).conversation.is_closed:

            def news(link: BlockingLink = link) -> bool:
                return not self._is_full(topic) or self._home(topic) is not link

            if not link.until(news, deadline):
                link.overdue("room")  # leaves a connection that is silent
                waited = f"no room within {self._options.timeout_s:g} s: waited to publish to {topic}"
                raise RequestTimeout(waited + link.trouble)
        return deadline

    @property
    def _mended(self) -> int:
        return sum([link.conversation.mended for link in self._links if link is not self._waiting_link])

    def _wait_for(self, topic: str, batch: Sent, deadline: float | None = None) -> None:
        """Wait for all outcomes of a batch, or until none will come; without ``deadline`` at most ``timeout_s``. Raises:
        RequestTimeout."""
        if deadline is None:
            deadline = now() + self._options.timeout_s
        while batch.missing and self._mended == batch.mended:
            link = self._publishes_at(topic)
            conversation, leaves = link.conversation, link.conversation.is_leaving(topic)
            mended = conversation.mended

            def news(link: BlockingLink = link, leaves: bool = leaves, mended: int = mended) -> bool:
                return (
                    not batch.missing or link.conversation.mended != mended or link.conversation.is_leaving(topic) != leaves
                    or (not leaves and self._home(topic) is not link)
                )  # fmt: skip

            if not link.until(news, deadline):
                batch.abandoned = True
                raise link.overdue(batch.stream.awaited)
            if conversation.is_closed:
                return

    def _publishes_at(self, topic: str) -> BlockingLink:
        """The connection where publishes to a topic are answered: the old one, while they are moving to another, or else that
        of the topic's worker."""
        return next((link for link in self._links if link.conversation.is_leaving(topic)), None) or self._home(topic)

    def _is_full(self, topic: str) -> bool:
        conversation = self._home(topic).conversation
        return conversation.outstanding.bytes >= OUTSTANDING_BYTES_MAX or conversation.unanswered_count >= UNANSWERED_MAX
