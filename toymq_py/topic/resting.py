"""Resting sessions: one that let a lease end gets nothing for a while, if others work.

Contract: delivery.md, "Visibility timeout"; ADR 0269. Belongs to the event loop.

The messages that a session lost would return to it whenever the windows of the others are full, and count an attempt each time:
a hanging worker beside busy ones would turn healthy messages into dead letters. So it rests for a visibility timeout, in which
the others get to those messages. It stops resting when it settles something, or when no other session works.
"""

from collections.abc import Callable, Collection
from itertools import islice
from typing import Generic, Protocol, Self, TypeVar

from toymq_py.consumer import Lessee

LOOKED_AT_MAX = 64
"""Most sessions that are asked whether they work: of thousands, where none of the first does, it is assumed that none does."""


class RestingSession(Protocol):
    """What resting needs of a ``Subscription``."""

    lessee: Lessee
    paused: bool

    @property
    def wake(self) -> Callable[[Self], bool]: ...


S = TypeVar("S", bound=RestingSession)


class Resting(Generic[S]):
    """The resting sessions of one channel. ``attached`` is the channel's own collection of sessions."""

    __slots__ = ("_attached", "_until_s")

    def __init__(self, attached: Collection[S]) -> None:
        self._attached = attached
        self._until_s: dict[S, float] = {}

    def __bool__(self) -> bool:
        return bool(self._until_s)

    def rests(self, session: S, now: float, visibility_s: float) -> float | None:
        """Until when a session rests (monotonic): it gets nothing, and is woken then. None when it may take."""
        lessee = session.lessee
        until_s = lessee.expired_at + visibility_s
        if not lessee.late or now >= until_s or not self._is_other_working(session):
            return None
        self._until_s[session] = until_s
        return until_s

    def wake(self, now: float) -> None:
        """Wake the sessions whose rest is over."""
        over = [each for each, until_s in self._until_s.items()
                if not each.lessee.late or now >= until_s or not self._is_other_working(each)]  # fmt: skip
        for session in over:
            del self._until_s[session]
        for session in over:
            session.wake(session)

    def forget(self, session: S) -> None:
        """Forget a session that is gone. Idempotent."""
        self._until_s.pop(session, None)

    def _is_other_working(self, session: S) -> bool:
        own = session.lessee
        return any(
            not (each.lessee is own or each.lessee.late or each.paused) for each in islice(self._attached, LOOKED_AT_MAX)
        )
