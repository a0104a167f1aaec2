"""Reads text files that an operator names: configuration, tokens, certificates. Limits the size, whatever the path leads to."""

import tomllib
from pathlib import Path
from typing import IO, Any, AnyStr

from toymq_py.errors import ConfigError

BYTES_MAX = 16 << 20
"""Most bytes of a text file: an auth file of 80,000 tokens has so many."""


def read_text(path: str, what: str, *, encoding: str = "utf-8", errors: str = "strict") -> str:
    """The text of a file, which may be a pipe. Blocks. Raises: ConfigError, which names ``what`` and the path."""
    try:
        with Path(path).open("rb") as file:
            content = read_bounded(file, f"{what} {path}")
    except OSError as error:
        raise ConfigError(f"cannot read {what} {path}: {error.strerror or error}") from error
    try:
        return content.decode(encoding, errors)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{what} {path} is not UTF-8 at byte {error.start}: save it as UTF-8") from None


def read_bounded(file: IO[AnyStr], where: str) -> AnyStr:
    """The content of an open file. Raises: OSError; ConfigError, which names ``where``, when it is too large."""
    content = file.read(BYTES_MAX + 1)
    if len(content) > BYTES_MAX:
        raise ConfigError(f"{where} has more than {BYTES_MAX} bytes: is it the right file?")
    return content


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """Parse TOML, however deep it is nested. Raises: ConfigError, which names ``where``."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: also a number of 5,000 digits
        raise ConfigError(f"{where} is not TOML: {str(error)[:200]}") from None
