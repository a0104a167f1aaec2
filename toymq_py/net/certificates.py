"""Server certificate, key and client CA.

Contract: reliability.md, "Security" (TLS 1.2+, client certificates). Files in, an ``ssl.SSLContext`` out; knows no connection.
"""

import ssl
from pathlib import Path

from toymq_py.errors import ConfigError


class Certificates:
    """The certificate, its key, and the CA of client certificates. A new connection gets the present ``context``; a newer one
    changes nothing for open connections."""

    def __init__(self, cert: str, key: str, client_ca: str | None = None) -> None:
        """Blocks.

        Args:
            cert: path of a PEM file: our certificate, and those between it and the root behind it.
            key: path of a PEM file: its private key, not encrypted.
            client_ca: path of a PEM file: every client must show a certificate that one of these vouches for.

        Raises: ConfigError.
        """
        self._cert = cert
        self._key = key
        self._client_ca = client_ca
        self.context = self._load()

    def reload(self) -> None:
        """Read the files again. Blocks. Raises: ConfigError; then everything stays as it was."""
        self.context = self._load()

    def _load(self) -> ssl.SSLContext:
        cert, key = self._cert, self._key
        _check(cert, "the certificate", "CERTIFICATE-----")
        _check(key, "the key", "PRIVATE KEY-----")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION  # a client could ask for it again and again, at our cost
        try:
            context.load_cert_chain(cert, key, password=_no_password)
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise ConfigError(f"the key {key} is not that of the certificate {cert}") from None
            raise ConfigError(f"the certificate {cert} or the key {key} is damaged{_why(error)}") from None
        except _Encrypted:
            raise ConfigError(f"the key {key} is encrypted; the broker takes one without a password") from None
        if self._client_ca is not None:
            _check(self._client_ca, "the CA", "CERTIFICATE-----")
            try:
                context.load_verify_locations(self._client_ca)
            except ssl.SSLError as error:
                raise ConfigError(f"the CA {self._client_ca} is damaged{_why(error)}") from None
            context.verify_mode = ssl.CERT_REQUIRED
        return context


class _Encrypted(Exception):
    pass


def _no_password() -> str:
    """Without this OpenSSL asks on the terminal."""
    raise _Encrypted


def _why(error: ssl.SSLError) -> str:
    """Of a PEM file that is cut OpenSSL says nothing."""
    return f": {error.reason.replace('_', ' ').lower()}" if error.reason else ""


def _check(path: str, what: str, mark: str) -> None:
    """OpenSSL names neither the file nor what it misses in it. Raises: ConfigError."""
    try:
        text = Path(path).read_text(encoding="ascii", errors="replace")
    except OSError as error:
        raise ConfigError(f"cannot read {what} {path}: {error.strerror or error}") from error
    if mark not in text:
        raise ConfigError(f"{what} {path} is not a PEM file: no line ends with {mark}")
