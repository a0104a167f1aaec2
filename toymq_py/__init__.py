"""The broker of toymq. Applications import ``toymq``, which has the public names; those of this package are not public."""

from toymq_py.version import __version__

__all__ = ["__version__"]
