"""toymq, a persistent message broker, for applications: ``connect`` to a broker, or ``open`` a directory as a queue.

These names are for asyncio. ``toymq.sync`` has the same names for blocking code, and ``toymq.testing`` fixtures for pytest.
This package also exports every error class; ``toymq.errors`` draws their tree. A name that needs asyncio, a broker module or
pytest is imported at its first use, so that a command line with the blocking client starts fast.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

from toymq.errors import *  # noqa: F403 (the list of errors stands once)
from toymq.errors import __all__ as _errors
from toymq.message import Receipt
from toymq.options import Connected, Disconnected
from toymq_py.version import __version__

if _TYPE_CHECKING:
    from toymq import errors, sync, testing, tracing  # noqa: F401 (two need optional packages and stay out of ``import *``)
    from toymq.client import Client
    from toymq.codecs import Codec, values
    from toymq.connecting import connect
    from toymq.publishing import Publishing
    from toymq.subscription import Message, Subscription
    from toymq.workers.app import App
    from toymq_py.embedded.asyncio import open

_LOADED_ON_USE = {
    "App": "toymq.workers.app",
    "Codec": "toymq.codecs",
    "Client": "toymq.client",
    "Message": "toymq.subscription",
    "Publishing": "toymq.publishing",
    "Subscription": "toymq.subscription",
    "connect": "toymq.connecting",
    "open": "toymq_py.embedded.asyncio",
    "values": "toymq.codecs",
}
_MODULES = ("errors", "sync", "testing", "tracing")


def __getattr__(name: str) -> object:
    if name in _MODULES:
        try:
            return _import_module(f"toymq.{name}")
        except ModuleNotFoundError as error:  # completion asks for each name of ``dir``
            raise AttributeError(f"toymq.{name} needs {error.name}: pip install {error.name}") from error
    if name not in _LOADED_ON_USE:
        raise AttributeError(f"module 'toymq' has no attribute {name!r}")
    value = globals()[name] = getattr(_import_module(_LOADED_ON_USE[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__, *_MODULES})


__all__ = [
    "App", "Client", "Codec", "Connected", "Disconnected", "Message", "Publishing", "Receipt", "Subscription", "__version__",
    "connect", "errors", "open", "sync", "values",
]  # fmt: skip
__all__ += _errors
