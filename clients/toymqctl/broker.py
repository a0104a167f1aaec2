"""Which broker, and how to get to it: address and token, from the command line and the environment."""

import logging
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import click

from toymq_client import sync
from toymq_client.url import Address, parse_url
from toymq_py.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Broker:
    """What every command is given. The token is in no repr and in no text."""

    address: Address

    def connect(self, *, connect_timeout_s: float = 5.0, timeout_s: float = 30.0) -> sync.Client:
        """Raises: ConnectFailed, RequestError (the token is not accepted), ProtocolViolation."""
        address = self.address
        token = f"{quote(address.token, safe='')}@" if address.token is not None else ""
        url = f"toymq{'s' if address.tls else ''}://{token}{address}"
        return sync.connect(url, name="toymqctl", connect_timeout_s=connect_timeout_s, timeout_s=timeout_s)


def find_broker(url: str, token: str | None, token_file: str | None) -> Broker:
    """``token_file`` goes before ``token``, and that before the URL's own.

    Raises: ConfigError; OSError when the file cannot be read.
    """
    address = parse_url(url)
    if token_file is not None:
        token = _checked(Path(token_file).read_text(errors="replace").strip(), f"the token in {token_file}")
    elif token is not None:
        token = _checked(token, "the token in TOYMQ_TOKEN")
    else:
        token = address.token
    return Broker(Address(address.host, address.port, token, address.tls))


def _checked(token: str, what: str) -> str:
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(f"{what} is not one word of printable ASCII")
    return token


class _Warnings(logging.Handler):
    """What the client says of outages. Its errors are raised as well, and said once."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.WARNING:
            click.echo(f"toymqctl: {record.getMessage()}", err=True)


_warnings = _Warnings()


def say_warnings() -> None:
    """Outages of the connection are said on stderr. Idempotent."""
    logger = logging.getLogger("toymq_client")
    logger.addHandler(_warnings)
    logger.propagate = False
