"""Limits the messages that are delivered and not acked, of one consumer and of all. Belongs to the event loop.

Each may need a run of its own in the lease table, for example when every second message is acked: the limit bounds that memory.
See docs/security.md, "Limits".
"""

from collections.abc import Callable
from typing import Final

from toymq_py.auth.quotas import Quotas
from toymq_py.storage.commit.sync_threads import Scheduler

FLOOR: Final = 1024
"""The number of unacked messages that each consumer may have, however many the others have: the usual window of one session."""
BYTES_OF_MEMORY: Final = 1320
"""The bytes of ``--memory-max`` that stand for one message: four times a run, so all of them take a quarter."""


class DeliveryBudget:
    """Counts the messages of all consumers that were delivered and are neither acked nor dead letters.

    Each consumer may have ``FLOOR`` such messages. At the limit over all consumers, one with more waits, and is woken when an
    eighth of the limit is free.
    """

    __slots__ = ("_quotas", "_scheduler", "_waiting", "consumer_max", "total")

    def __init__(self, consumer_max: int, quotas: Quotas, scheduler: Scheduler) -> None:
        self.consumer_max = consumer_max
        """Most unacked messages of one consumer (``--max-unacked``)."""
        self.total = 0
        self._quotas = quotas
        self._scheduler = scheduler
        self._waiting: dict[Callable[[], None], None] = {}

    @property
    def total_max(self) -> int:
        """The limit over all consumers, apart from what ``FLOOR`` allows; 0 without a limit of memory."""
        return self._quotas.memory_max_bytes // BYTES_OF_MEMORY

    def room(self, outstanding: int) -> int:
        """How many new messages a consumer with ``outstanding`` unsettled ones may get; 0 or less for none."""
        room = self.consumer_max - outstanding
        if total_max := self.total_max:
            room = min(room, max(total_max - self.total, FLOOR - outstanding))
        return room

    def change(self, by: int) -> None:
        """Note that the consumers together have ``by`` more unsettled messages, or fewer if it is negative."""
        self.total += by
        if by < 0 and self._waiting and self.total <= self.total_max * 7 // 8:
            waiting, self._waiting = self._waiting, {}
            for notify in waiting:
                self._scheduler.soon(notify)

    def wait(self, notify: Callable[[], None]) -> None:
        """Call ``notify`` once, when all consumers together have fewer messages; does nothing unless they are at their common
        limit."""
        if self.total_max and self.total >= self.total_max:
            self._waiting[notify] = None
