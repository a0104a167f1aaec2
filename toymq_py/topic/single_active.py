"""Which session of a consumer with mode=single is active: many are attached, one gets the messages, and another one takes over.

Contract: groups.md, stage 4; ADR 0186. Belongs to the event loop. Knows no channel: it is told which session comes or goes.
"""

from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

from toymq_py.consumer import Lessee

MOVES_AT = 2
"""A session that comes takes a topic over from one that has so many active ones more: one less would only change places."""


class Session(Protocol):
    """A subscription of a session to one topic. ``lessee``: of the session's whole subscription, whose active topics count."""

    lessee: Lessee


S = TypeVar("S", bound=Session)


class SingleActive(Generic[S]):
    """Of one consumer. The counts of active topics are in the lessees: a subscription to a pattern, or to a partitioned topic,
    is the lessee of all its topics with this process, so its topics are shared out without a coordinator.

    While there is an ``heir``, the active session gets nothing more, and its leases run: with the last of them the heir is
    active. So no two sessions have messages of the topic at once, and the order of the topic stays.
    """

    __slots__ = ("_turn", "active", "heir")

    def __init__(self, turn: int = 0) -> None:
        """``turn``: the number of a partition: among sessions with equal shares another one has each partition. Their shares
        elsewhere, at other workers and groups, are not known here, and each would favour the oldest one (ADR 0201)."""
        self.active: S | None = None
        self.heir: S | None = None
        self._turn = turn

    @property
    def taker(self) -> S | None:
        """The session that may take now."""
        return self.active if self.heir is None else None

    def joined(self, session: S, count: int = 1) -> None:
        """A session is attached: it is active where no other one is, and takes over from one that has more. ``count``: of all
        that are attached now; in its turn it takes over from one that has a single one more."""
        moves_at = 1 if self._turn % count == count - 1 else MOVES_AT
        if self.active is None:
            self.active = session
            session.lessee.active += 1
        elif self.heir is None and self.active.lessee.active - session.lessee.active >= moves_at:
            self.heir = session
            self.active.lessee.active -= 1
            session.lessee.active += 1

    def settle(self, holds: Callable[[Lessee], object]) -> S | None:
        """Let the heir take over where the active session holds no lease any more. Returns: the heir, which may take now."""
        if self.heir is None or self.active is None or holds(self.active.lessee):
            return None
        self.active, self.heir = self.heir, None
        return self.active

    def left(self, session: S, others: Iterable[S]) -> S | None:
        """A session is gone. Returns: the one that may take now and could not before; one of the ``others`` with the fewest
        active topics, in turn from the oldest on."""
        if session is self.heir:
            self.heir = None
            session.lessee.active -= 1
            if self.active is not None:
                self.active.lessee.active += 1
            return self.active
        if session is not self.active:
            return None
        if self.heir is not None:
            self.active, self.heir = self.heir, None
            return self.active
        session.lessee.active -= 1
        others = list(others)
        fewest = min((other.lessee.active for other in others), default=0)
        equals = [other for other in others if other.lessee.active == fewest]
        self.active = equals[self._turn % len(equals)] if equals else None
        if self.active is not None:
            self.active.lessee.active += 1
        return self.active
