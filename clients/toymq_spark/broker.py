"""Connections to a broker, with token and certificates, and retries. Knows nothing of Spark.

Driver and executors read the files of tokens and certificates for each connection, so a replaced file applies from the next
connection on.
"""

import logging
import ssl
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, TypeVar

from toymq import sync
from toymq.errors import CertificateRefused
from toymq.url import is_token, parse_url
from toymq_py.errors import ConfigError, ConnectionLost, ShuttingDown, TooManyConnections, ToymqError
from toymq_py.text_files import read_bounded
from toymq_spark.errors import OptionError
from toymq_spark.options import BrokerAddress, Certificates

logger = logging.getLogger("toymq_spark")

T = TypeVar("T")
REQUEST_TIMEOUT_S = 10.0
"""For a reply, reconnecting included."""
TRANSIENT = (ConnectionLost, OSError, ShuttingDown, TooManyConnections)
"""Errors that pass when a broker has restarted. TimeoutError is an OSError."""


class RetryingClient:
    """A client that connects at its first use, and retries a request after transient errors, ``num_retries`` of the address
    times."""

    def __init__(self, address: BrokerAddress, sleep: Callable[[float], None] = time.sleep) -> None:
        self._address = address
        self._sleep = sleep
        self._client: sync.Client | None = None

    def connected(self) -> sync.Client:
        """Return the connected client. Raises: OptionError, OSError, ToymqError."""
        if self._client is None:
            self._client = connect(self._address)
        return self._client

    def call(self, doing: str, request: Callable[[sync.Client], T]) -> T:
        """Make a request, and retry it after transient errors; ``doing`` describes it in the log. Raises: OptionError, OSError,
        ToymqError."""
        failures = 0
        while True:
            try:
                return request(self.connected())
            except (*TRANSIENT, ToymqError) as error:
                failures += 1
                if not self.pause(error, failures, doing):
                    raise

    def pause(self, error: Exception, failures: int, doing: str) -> bool:
        """Close the connection and wait before another attempt. Returns: False when there is to be no other attempt."""
        passes = isinstance(error, TRANSIENT) or getattr(error, "retryable", False)
        if not passes or isinstance(error, CertificateRefused):
            return False
        self.close()
        if failures > self._address.num_retries:
            return False
        pause_s = self._address.retry_interval_ms / 1000 * 2 ** (failures - 1)
        logger.warning("%s failed (%s); trying again in %g s", doing, error, pause_s)
        self._sleep(pause_s)
        return True

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


def connect(address: BrokerAddress) -> sync.Client:
    """Connect a blocking client to the broker. Raises: OptionError for an unreadable file; what the client raises."""
    certificates = address.certificates
    context = None if certificates is None else tls_context(certificates)
    return sync.connect(url_with_token(address), ssl=context, timeout_s=REQUEST_TIMEOUT_S)


def url_with_token(address: BrokerAddress) -> str:
    """Return the broker's URL with the token from the token file, if there is one. Raises: OptionError."""
    if address.token_file is None:
        return address.url
    option = "toymq.token.file"
    token = _read(option, address.token_file).decode("utf-8", "replace").strip()
    if not is_token(token):
        _fail(option, f"invalid token in {address.token_file}: write one word of printable ASCII")
    return replace(parse_url(address.url), token=token).url


def tls_context(certificates: Certificates) -> ssl.SSLContext:
    """Make a TLS context from the certificate files. Raises: OptionError."""
    ca, cert, key = certificates.ca, certificates.cert, certificates.key
    for option, path in (("toymq.tls.ca", ca), ("toymq.tls.cert", cert), ("toymq.tls.key", key)):
        if path is not None:
            _read(option, path)  # OpenSSL does not name the file
    try:
        context = ssl.create_default_context(cafile=ca)
    except ssl.SSLError:
        _fail("toymq.tls.ca", f"cannot load a certificate from {ca}: use a PEM file")
    if cert is not None:
        try:
            context.load_cert_chain(cert, key)
        except ssl.SSLError:
            pair = f"{cert} and {key or 'no toymq.tls.key'}"
            _fail("toymq.tls.cert", f"cannot load {pair}: use the PEM files of a certificate and its key")
    return context


def _read(option: str, path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return read_bounded(file, path)
    except OSError as error:
        _fail(option, f"cannot read {path}: {error.strerror or error}")
    except ConfigError as error:
        _fail(option, str(error))


def _fail(option: str, why: str) -> NoReturn:
    raise OptionError(f"option {option}: {why}") from None
