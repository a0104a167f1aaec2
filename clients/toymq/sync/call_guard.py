"""Allows one thread at a time in the calls of a blocking client: its threads would share one connection and read each other's
answers.

A second thread is refused before it touches anything, so the first one goes on. A nested call of the same thread, from a signal
handler or a callback, is allowed (ADR 0089).
"""

from collections.abc import Callable
from functools import wraps
from threading import get_ident
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from toymq_py.errors import ConfigError

P = ParamSpec("P")
T = TypeVar("T")
HOLDER = 0
"""The one key of ``CallGuard.holders``."""


class CallGuard:
    """The guard of one client and of all objects made by it: knows which thread is in a call."""

    __slots__ = ("holders",)

    def __init__(self) -> None:
        self.holders: dict[int, list[int]] = {}
        """Empty, or ``HOLDER``: a list of its own of the outermost call, with the identifier of its thread. ``setdefault``
        tests and sets in one step, and ``del`` calls nothing: a signal handler that raises cannot come between a step and the
        record of it, as it can behind ``Lock.acquire``, and the guard is never left held."""

    def after_fork(self) -> None:
        """Forget the threads that were in a call: the child of a fork does not have them."""
        holder = self.holders.get(HOLDER)
        if holder is not None and holder[0] != get_ident():
            self.holders.clear()


class _Guarded(Protocol):
    @property
    def _guard(self) -> CallGuard: ...


S = TypeVar("S", bound=_Guarded)


def one_thread(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Decorate a method: it raises ConfigError when another thread is in a call of the same client."""

    @wraps(method)
    def guarded(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        holders = self._guard.holders
        ours = [get_ident()]
        try:
            if (holder := holders.setdefault(HOLDER, ours)) is not ours and holder != ours:
                raise refused()
            return method(self, *args, **kwargs)
        finally:
            if holders and holders[HOLDER] is ours:
                del holders[HOLDER]

    return guarded


def refused() -> ConfigError:
    """Make the error for a thread that calls a client while another thread is in a call of it."""
    text = "another thread is in a call of this client: connect once for each thread, or hold a lock around each call"
    return ConfigError(text)
