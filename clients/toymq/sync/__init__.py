"""The blocking client: the names of ``toymq`` without ``async``."""

from importlib import import_module
from typing import TYPE_CHECKING

from toymq.sync.client import Client, connect
from toymq.sync.subscription import Message, Subscription

if TYPE_CHECKING:
    from toymq_py.embedded.blocking import open


def __getattr__(name: str) -> object:
    if name != "open":
        raise AttributeError(f"module 'toymq.sync' has no attribute {name!r}")
    value = globals()[name] = import_module("toymq_py.embedded.blocking").open
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = ["Client", "Message", "Subscription", "connect", "open"]
