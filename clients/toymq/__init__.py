"""toymq, a persistent message broker, for applications: ``connect`` to a broker, or ``open`` a directory as a queue.

For asyncio; ``toymq.sync`` has the same names for blocking code, ``toymq.errors`` every error, ``toymq.testing`` fixtures for
pytest. Importing it loads neither asyncio nor a broker module: both would double the start of a command line that uses the
blocking client.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from toymq.errors import ClientClosed, ConnectFailed, ConsumerDeleted, RequestTimeout, SubscriptionEnded, TakenOver
from toymq.message import Receipt
from toymq.options import Connected, Disconnected
from toymq_py.errors import ConfigError, ConnectionLost, ProtocolViolation, RequestError, ToymqError
from toymq_py.version import __version__

if TYPE_CHECKING:
    from toymq import errors, sync
    from toymq.client import Client, Publishing, connect
    from toymq.subscription import Message, Subscription
    from toymq_py.embedded.asyncio import open

_LATER = {
    "Client": "toymq.client",
    "Message": "toymq.subscription",
    "Publishing": "toymq.client",
    "Subscription": "toymq.subscription",
    "connect": "toymq.client",
    "open": "toymq_py.embedded.asyncio",
}
_MODULES = ("errors", "sync")


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return import_module(f"toymq.{name}")
    if name not in _LATER:
        raise AttributeError(f"module 'toymq' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_LATER[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "Client", "ClientClosed", "ConfigError", "ConnectFailed", "Connected", "ConnectionLost", "ConsumerDeleted", "Disconnected",
    "Message", "ProtocolViolation", "Publishing", "Receipt", "RequestError", "RequestTimeout", "Subscription",
    "SubscriptionEnded", "TakenOver", "ToymqError", "__version__", "connect", "errors", "open", "sync",
]  # fmt: skip
