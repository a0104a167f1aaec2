"""The blocking client: the names of ``toymq`` without ``async``."""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

from toymq.sync.client import Client, connect
from toymq.sync.subscription import Message, Subscription

if _TYPE_CHECKING:
    from toymq_py.embedded.blocking import open


def __getattr__(name: str) -> object:
    if name != "open":
        raise AttributeError(f"module 'toymq.sync' has no attribute {name!r}")
    value = globals()[name] = _import_module("toymq_py.embedded.blocking").open
    return value


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})


__all__ = ["Client", "Message", "Subscription", "connect", "open"]
