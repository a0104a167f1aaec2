"""Which session of a consumer with mode=single is active: many are attached, one gets the messages, and another one takes over.

Contract: groups.md, stage 4; ADR 0186, 0215, 0264. Belongs to the event loop. It is told which session comes, goes or hangs.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Generic, Protocol, TypeVar

from toymq_py.consumer import Lessee


class Session(Protocol):
    """A session's subscription to one topic. ``lessee``: of the session's whole subscription, maybe to several topics; it
    counts in how many of them the session is active, and is ``late`` while the session hangs. ``paused``: the session gets no
    deliveries."""

    lessee: Lessee
    paused: bool


S = TypeVar("S", bound=Session)


class SingleActive(Generic[S]):
    """Chooses the active session of one consumer. The lessees count active topics: a subscription to a pattern or a partitioned
    topic is one lessee for all its topics in this process, so topics are shared out without a coordinator.

    While there is an ``heir``, the active session gets nothing more; the heir becomes active when the last of its leases has
    ended. So no two sessions have messages of the topic at once, and the order of the topic stays.
    """

    __slots__ = ("_hung", "_turn", "active", "heir")

    def __init__(self, turn: int = 0) -> None:
        """``turn``: the number of a partition, so that left-over partitions go to different sessions. The sessions' shares at
        other workers and groups are not known here, and each place would favour the oldest session (ADR 0201)."""
        self.active: S | None = None
        self.heir: S | None = None
        self._hung: dict[S, None] = {}  # each has lost the topic as it hung, or was paused
        self._turn = turn

    @property
    def taker(self) -> S | None:
        """The session that gets deliveries now; None while it hands over to the heir."""
        return self.active if self.heir is None else None

    def joined(self, session: S, attached: Collection[S]) -> None:
        """Note an attached session: it becomes active if no other is; it takes over from one that hangs, is paused, or has more
        than its share of the topics of all ``attached`` sessions, this one included."""
        if self.active is None:
            self.active = session
            session.lessee.active += 1
        elif self.heir is None and session is not self.active and self._is_able(session) and (
            not self._is_able(self.active) or self._is_owed(session.lessee.active, self.active.lessee.active, attached)
        ):
            self._inherit(self.active, session)

    def _inherit(self, active: S, heir: S) -> None:
        if not self._is_able(active):
            self._hung[active] = None
        self.heir = heir
        active.lessee.active -= 1
        heir.lessee.active += 1

    def hand_over(self, attached: Iterable[S], *, in_turn: bool) -> bool:
        """Let another session take over from the active one, which hangs or is paused; if all others hang and ``in_turn`` is
        set, the next one in the order of ``attached``. A paused session never takes over. Returns: whether there is a new
        heir."""
        if self.active is None or self.heir is not None:
            return False
        sessions = list(attached)
        heir = self._fewest(self._able(each for each in sessions if each is not self.active))
        if heir is None and in_turn:
            at = sessions.index(self.active)
            heir = next((each for each in sessions[at + 1 :] + sessions[:at] if not each.paused), None)
        if heir is not None:
            self._inherit(self.active, heir)
        return heir is not None

    def _is_owed(self, its: int, actives: int, attached: Collection[S]) -> bool:
        """Whether a session that attaches, with ``its`` active topics, gets one of the ``actives`` topics of the active
        session, so that the counts become equal. Where n sessions cannot have equal counts, some have one topic more than the
        others."""
        if actives <= its:
            return False
        shares = [other.lessee.active for other in attached]
        share, more = divmod(sum(shares), len(shares))
        if actives != share + 1:
            return actives > share
        if its < share:
            return sum(one > share for one in shares) > more
        return self._turn % len(shares) == len(shares) - 1

    def readmit(self, attached: Collection[S]) -> None:
        """Treat a session that lost the topic, because it hung or was paused, as if it attached again, once it works: it may
        get its share."""
        session = None if self.heir is not None else next(filter(self._is_able, self._hung), None)
        if session is not None:
            del self._hung[session]
            self.joined(session, attached)

    def settle(self, holds: Callable[[Lessee], object]) -> S | None:
        """Let the heir take over when the active session ``holds`` no lease any more. Returns: the heir, which may take now."""
        if self.heir is None or self.active is None or holds(self.active.lessee):
            return None
        self.active, self.heir = self.heir, None
        return self.active

    def left(self, session: S, others: Iterable[S]) -> S | None:
        """Note that a session is gone. Returns: the session that may take from now on, if it changes: of the ``others`` one
        with the fewest active topics, in turn from the oldest on; one that hangs or is paused only if all do."""
        self._hung.pop(session, None)
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
        self.active = self._fewest(self._able(others)) or self._fewest(others)
        if self.active is not None:
            self.active.lessee.active += 1
        return self.active

    @staticmethod
    def _is_able(session: S) -> bool:
        return not (session.lessee.late or session.paused)

    def _able(self, sessions: Iterable[S]) -> list[S]:
        return list(filter(self._is_able, sessions))

    def _fewest(self, sessions: list[S]) -> S | None:
        fewest = min((each.lessee.active for each in sessions), default=0)
        equals = [each for each in sessions if each.lessee.active == fewest]
        return equals[self._turn % len(equals)] if equals else None
