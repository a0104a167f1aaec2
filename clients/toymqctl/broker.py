"""Connects to a command's broker, with the address, token and certificates from the command line and the environment."""

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

import click

import toymq
from toymq import sync
from toymq.options import OnEvent
from toymq.url import Address
from toymq_py.errors import ConfigError

TIMEOUT_S = 30.0
"""Longest wait of a command for an answer."""


@dataclass(frozen=True, slots=True)
class Certificates:
    """Paths of PEM files for TLS."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def context(self) -> ssl.SSLContext | None:
        """Make the TLS context from these files; None when there are none: the client trusts the system's CAs. Raises:
        ConfigError."""
        if self.key is not None and self.cert is None:
            raise ConfigError("--tls-key needs --tls-cert")
        if self == Certificates():
            return None
        for option, path in (("--tls-ca", self.ca), ("--tls-cert", self.cert), ("--tls-key", self.key)):
            if path is not None:
                _check_readable(option, path)
        try:
            context = ssl.create_default_context(cafile=self.ca)
        except ssl.SSLError:
            raise ConfigError(f"--tls-ca: cannot load a certificate from {self.ca}: use the CA's PEM file") from None
        if self.cert is not None:
            try:
                context.load_cert_chain(self.cert, self.key)
            except ssl.SSLError:
                where = f"{self.cert} and {self.key}" if self.key is not None else f"{self.cert} without --tls-key"
                raise ConfigError(f"--tls-cert: cannot load a certificate and key from {where}: use a matching pair") from None
        return context


def _check_readable(option: str, path: str) -> None:
    """Check that a file can be read, since OpenSSL's error does not name it. Raises: ConfigError."""
    try:
        Path(path).open("rb").close()
    except OSError as error:
        raise ConfigError(f"{option}: cannot read {path}: {error.strerror or error}") from error


@dataclass(frozen=True, slots=True)
class Broker:
    """A command's broker: its addresses and how to connect. ``repr`` and errors never contain the token."""

    address: Address
    certificates: Certificates = Certificates()
    others: tuple[Address, ...] = ()
    """Other nodes of its cluster."""
    http_url: str | None = None
    """URL of its HTTP gateway, where it is named; see ``gateway.py``."""

    def connect(
        self, *, connect_timeout_s: float = 5.0, timeout_s: float = TIMEOUT_S, wait_s: float | None = None,
        idempotent: bool = True, on_event: OnEvent | None = None,
    ) -> sync.Client:  # fmt: skip
        """Connect a blocking client. Raises: ConfigError, ConnectFailed, RequestError (the token is not accepted),
        ProtocolViolation."""
        return sync.connect(
            self._urls, name="toymqctl", ssl=self._tls, connect_timeout_s=connect_timeout_s, timeout_s=timeout_s,
            wait_s=wait_s, idempotent=idempotent, on_event=on_event,
        )  # fmt: skip

    @property
    def as_far_as_seen(self) -> str:
        """The end of a line that says that a list is empty: with a token the broker lists only what that token may see."""
        return "" if self.address.token is None else " that this token may see"

    @property
    def of_topics_seen(self) -> str:
        """The end of a line about all listed topics: with a token, topics that it may not see are not included."""
        return f" (of the topics{self.as_far_as_seen})" if self.as_far_as_seen else ""

    def client(self, *, timeout_s: float, on_event: OnEvent) -> "toymq.Client":
        """Make an asyncio client that is not connected yet. Raises: ConfigError."""
        return toymq.connect(self._urls, name="toymqctl", ssl=self._tls, timeout_s=timeout_s, on_event=on_event)

    @property
    def _urls(self) -> list[str]:
        return [address.url for address in (self.address, *self.others)]

    @property
    def _tls(self) -> ssl.SSLContext | None:
        """The TLS context for the broker's URL; None for a URL without TLS, and for the system's CAs. Raises: ConfigError."""
        return self.certificates.context() if self.address.tls else None


class _Warnings(logging.Handler):
    """A logging handler that prints the client's warnings of outages on stderr; errors are raised and printed elsewhere."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.WARNING:
            click.echo(f"toymqctl: {record.getMessage()}", err=True)


_warnings = _Warnings()


def show_warnings() -> None:
    """Print outages of the connection on stderr. Idempotent."""
    logger = logging.getLogger("toymq")
    logger.addHandler(_warnings)
    logger.propagate = False


def hide_warnings() -> None:
    """Stop printing outages: a full-screen command shows them itself."""
    logging.getLogger("toymq").removeHandler(_warnings)
    logging.getLogger("toymq").addHandler(logging.NullHandler())
