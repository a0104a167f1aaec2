"""A connection to a broker, made where it is used, with its token, certificates and CA.

The driver or executor that connects reads the files of tokens and certificates each time: a file that is replaced holds from
the next connection on. Knows nothing of Spark.
"""

import ssl
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from toymq import sync
from toymq.url import is_token, parse_url
from toymq_py.errors import ConnectionLost, ShuttingDown, TooManyConnections
from toymq_spark.errors import OptionError
from toymq_spark.options import BrokerAddress, Certificates

REQUEST_TIMEOUT_S = 10.0
"""For an answer, a connection that is lost and made again meanwhile included."""
TRANSIENT = (ConnectionLost, OSError, ShuttingDown, TooManyConnections)
"""What passes by itself when a broker restarts. TimeoutError is an OSError."""


def connect(address: BrokerAddress) -> sync.Client:
    """Raises: OptionError for a file that is none; what the client raises."""
    certificates = address.certificates
    context = None if certificates is None else tls_context(certificates)
    return sync.connect(url_with_token(address), ssl=context, timeout_s=REQUEST_TIMEOUT_S)


def url_with_token(address: BrokerAddress) -> str:
    """Raises: OptionError."""
    if address.token_file is None:
        return address.url
    option = "toymq.token.file"
    token = _read(option, address.token_file).decode("utf-8", "replace").strip()
    if not is_token(token):
        _fail(option, f"{address.token_file} holds more or less than one word of printable ASCII")
    return replace(parse_url(address.url), token=token).url


def tls_context(certificates: Certificates) -> ssl.SSLContext:
    """Raises: OptionError."""
    ca, cert, key = certificates.ca, certificates.cert, certificates.key
    for option, path in (("toymq.tls.ca", ca), ("toymq.tls.cert", cert), ("toymq.tls.key", key)):
        if path is not None:
            _read(option, path)  # OpenSSL does not name the file
    try:
        context = ssl.create_default_context(cafile=ca)
    except ssl.SSLError:
        _fail("toymq.tls.ca", f"{ca} has no certificate in PEM format")
    if cert is not None:
        try:
            context.load_cert_chain(cert, key)
        except ssl.SSLError:
            _fail("toymq.tls.cert", f"{cert} and {key or 'no toymq.tls.key'}: give a certificate and its key in PEM format")
    return context


def _read(option: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        _fail(option, f"cannot read {path}: {error.strerror or error}")


def _fail(option: str, why: str) -> NoReturn:
    raise OptionError(f"option {option}: {why}") from None
