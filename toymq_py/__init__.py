"""toymq_py: a small persistent message broker. Importing it loads no broker module; ``open`` and ``sync`` do."""

from importlib import import_module
from typing import TYPE_CHECKING

from toymq_py.version import __version__

if TYPE_CHECKING:
    from toymq_py import sync
    from toymq_py.embedded import open


def __getattr__(name: str) -> object:
    if name == "open":
        value = import_module("toymq_py.embedded").open
    elif name == "sync":
        value = import_module("toymq_py.sync")
    else:
        raise AttributeError(f"module 'toymq_py' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = ["__version__", "open", "sync"]
