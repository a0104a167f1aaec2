"""The usage of the limits by one token or address, and the token of the present request."""

from contextvars import ContextVar


class Holder:
    """The usage of one token, or of one address of another machine. ``limited`` is False for admins and for this machine."""

    __slots__ = ("connections", "held_bytes", "limited", "name", "percent")

    def __init__(self, name: str, percent: int, *, limited: bool = True) -> None:
        self.name = name
        self.percent = percent
        self.limited = limited
        self.connections = 0
        self.held_bytes = 0

    def share(self, limit: int) -> int:
        """How much of a limit this holder may use; at least one."""
        return max(limit * self.percent // 100, 1) if self.limited else limit

    def exceeds(self, limit: int) -> bool:
        """Whether the held bytes are more than this holder's share of a limit."""
        return self.limited and self.held_bytes > self.share(limit)

    @property
    def unused(self) -> bool:
        return not self.connections


acting_token: ContextVar[Holder | None] = ContextVar("toymq_acting", default=None)
"""The token of the present request; None for the broker itself or without tokens. A context variable, because a topic or a
consumer is created deep below its request, and perhaps after a wait."""
