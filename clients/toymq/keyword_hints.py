"""Hints for unknown keyword arguments of a client's methods: for another library's name the TypeError tells toymq's name."""

import inspect
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from toymq_py.setting_units import SETTINGS

P = ParamSpec("P")
T = TypeVar("T")

CLOSE = 0.7
"""The likeness of two words, of 1, from which one is suggested."""
MEANT = {
    "ack_timeout": "visibility", "auto_acknowledge": "auto_ack", "batch_size": "max", "block": "wait", "client_id": "name",
    "client_name": "name", "count": "max", "countdown": "delay", "default_retry_delay": "backoff", "expires": "ttl",
    "from_": "start", "group": "consumer", "group_id": "consumer", "lease": "visibility", "limit": "max",
    "max_in_flight": "window", "max_inflight": "window", "max_messages": "max", "max_retries": "retries",
    "min_backoff": "backoff", "no_ack": "auto_ack", "offset": "start", "password": "token", "prefetch": "window",
    "prefetch_count": "window", "queue": "topic", "queue_name": "topic", "retry_backoff": "backoff",
    "subscription": "consumer", "throws": "dead_on", "time_limit": "timeout", "timeout": "wait", "timeout_s": "wait",
    "url": "urls", "visibility_timeout": "visibility",
}  # fmt: skip
"""The names of other clients for arguments, and the names here; each counts where the method has that argument."""


def hinted(method: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function or method: an unknown keyword argument raises a TypeError with a hint."""
    if inspect.iscoroutinefunction(method):

        @wraps(method)
        async def awaited(*args: P.args, **kwargs: P.kwargs) -> Any:
            try:
                return await method(*args, **kwargs)
            except TypeError:
                _refuse(method, kwargs)
                raise

        return awaited  # type: ignore[return-value]  # a coroutine function, as the method is

    @wraps(method)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(*args, **kwargs)
        except TypeError:
            _refuse(method, kwargs)
            raise

    return called


def _refuse(method: Callable[..., object], given: Iterable[str]) -> None:
    """Refuse an unknown argument, with a hint. Raises: TypeError, of the first argument that the method does not have."""
    known = [one.name for one in inspect.signature(method).parameters.values() if one.name != "self"]
    unknown = next((name for name in given if name not in known), None)
    if unknown is not None:
        raise TypeError(f"{method.__name__}() has no argument {unknown!r}: {remedy(unknown, known)}") from None


def remedy(unknown: str, known: list[str]) -> str:
    """The hint for an unknown argument: what to write instead."""
    if unknown in SETTINGS and "settings" in known:
        return f'settings are a dict, {{"{unknown}": …}}'
    meant = MEANT.get(unknown)
    if meant is None or meant not in known:
        meant = next(iter(get_close_matches(unknown, known, 1, CLOSE)), None)
    if meant is None and unknown.endswith("_s") and unknown.removesuffix("_s") in known:
        meant = unknown.removesuffix("_s")
    return f"use {meant}" if meant is not None else f"it has {', '.join(known)}"
