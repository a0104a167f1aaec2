"""What the blocking client's ``pub_many`` returns."""

from collections.abc import Callable, Iterable, Iterator

from toymq.arguments import Seconds
from toymq.message import Item, Receipt
from toymq.mixups import PlainAwait, PlainFor
from toymq.pending_publishes import PublishMany
from toymq.sync.call_guard import CallGuard, one_thread

PublishAll = Callable[[str, Iterable[Item], tuple[int | None, int | None], int, int], Iterator[Receipt]]


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
