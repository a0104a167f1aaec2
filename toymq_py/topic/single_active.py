"""Which session of a consumer with mode=single is active: many are attached, one gets the messages, and another one takes over.

Contract: groups.md, stage 4; ADR 0186, 0215. Belongs to the event loop. It is told which session comes or goes.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Generic, Protocol, TypeVar

from toymq_py.consumer import Lessee


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
        """``turn``: the number of a partition: one that is left over goes to another session for each. Their shares
        elsewhere, at other workers and groups, are not known here, and each would favour the oldest one (ADR 0201)."""
        self.active: S | None = None
        self.heir: S | None = None
        self._turn = turn

    @property
    def taker(self) -> S | None:
        """The session that may take now."""
        return self.active if self.heir is None else None

    def joined(self, session: S, attached: Collection[S]) -> None:
        """A session is attached: it is active where no other one is, and takes over from one that has more than its share of
        what all that are ``attached`` have, this one among them."""
        if self.active is None:
            self.active = session
            session.lessee.active += 1
        elif self.heir is None and self._is_owed(session.lessee.active, self.active.lessee.active, attached):
            self.heir = session
            self.active.lessee.active -= 1
            session.lessee.active += 1

    def _is_owed(self, its: int, actives: int, attached: Collection[S]) -> bool:
        """Whether a session that comes, with ``its`` active topics, gets one of the active session's. Of ``share * n + more``
        topics of n sessions, ``more`` sessions have one more than the share."""
        if actives <= its:
            return False
        shares = [other.lessee.active for other in attached]
        share, more = divmod(sum(shares), len(shares))
        if actives != share + 1:
            return actives > share
        if its < share:
            return sum(one > share for one in shares) > more
        return self._turn % len(shares) == len(shares) - 1

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
