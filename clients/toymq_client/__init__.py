"""Client of the toymq broker for asyncio; ``toymq_client.sync`` is the blocking one. Importing it loads no broker module.

What needs asyncio is loaded when it is asked for: half of the start of a command line that uses the blocking client would be
spent on it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from toymq_client.errors import (
    ClientClosed,
    ConnectFailed,
    ConsumerDeleted,
    RequestTimeout,
    SubscriptionEnded,
    TakenOver,
)
from toymq_client.message import Receipt
from toymq_client.options import Connected, Disconnected
from toymq_py.errors import ConfigError, ConnectionLost, ProtocolViolation, RequestError, ToymqError

if TYPE_CHECKING:
    from toymq_client.client import Client, Publishing, connect
    from toymq_client.subscription import Message, Subscription

_LATER = {
    "Client": "client",
    "Message": "subscription",
    "Publishing": "client",
    "Subscription": "subscription",
    "connect": "client",
}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module 'toymq_client' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"toymq_client.{_LATER[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "Client", "ClientClosed", "ConfigError", "ConnectFailed", "Connected", "ConnectionLost", "ConsumerDeleted", "Disconnected",
    "Message", "ProtocolViolation", "Publishing", "Receipt", "RequestError", "RequestTimeout", "Subscription",
    "SubscriptionEnded", "TakenOver", "ToymqError", "connect",
]  # fmt: skip
