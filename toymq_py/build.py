"""Facts about this installation: whether modules are compiled, which CRC is used (ADR 0095), where the documentation is."""

from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path

PROBE = "toymq_py.records"
"""A module that every compiled wheel has compiled: all of the list in pyproject.toml are, or none."""

FROM_SOURCE = "running from source: compiled takes up to 25 % less CPU a message; pip compiles where cc and Python.h are"
"""What ``toymq serve`` logs at start where nothing is compiled; the share is that of ADR 0095."""


def compiled() -> bool:
    """Whether the hot modules of this installation are compiled."""
    spec = find_spec(PROBE)
    return spec is not None and spec.origin is not None and spec.origin.endswith(tuple(EXTENSION_SUFFIXES))


def fast_crc() -> bool:
    """Whether zlib-ng computes the CRC of records."""
    return find_spec("zlib_ng") is not None


def describe() -> str:
    """The build in a few words, such as ``compiled, zlib_ng``, for reports of measurements."""
    return ("compiled" if compiled() else "as source") + (", zlib_ng" if fast_crc() else "")


def docs_directory() -> Path:
    """The directory of the documentation's pages: in the installed package, or beside the package in a checkout."""
    package = Path(__file__).parent
    return next((path for path in (package / "docs", package.parent / "docs") if path.is_dir()), package / "docs")
