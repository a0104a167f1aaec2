"""Publishes of the blocking client: what waits for receipts, and what ``pub_many`` returns."""

from collections.abc import Callable, Iterable, Iterator

from toymq.arguments import Seconds
from toymq.message import Item, Receipt
from toymq.mixups import PlainAwait, PlainFor
from toymq.pending_publishes import Batch, Outcome, PublishMany, Stream
from toymq.sync.call_guard import CallGuard, one_thread
from toymq_py.errors import ConnectionLost

PublishAll = Callable[[str, Iterable[Item], tuple[int | None, int | None], int, int], Iterator[Receipt]]


class Sent(Batch):
    """``mended``: when its conversation was mended so often; after the next time there is no answer."""

    __slots__ = ("mended", "stream")

    mended: int
    stream: Stream


def receipt_of(outcome: Outcome | None) -> Receipt:
    """Raises: why there is none."""
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
