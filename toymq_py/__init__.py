"""The broker of toymq. Applications import ``toymq``: its names are the public ones, those of this package are not."""

from toymq_py.version import __version__

__all__ = ["__version__"]
