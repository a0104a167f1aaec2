"""TLS certificates, keys and CAs of the listeners for clients, and of a cluster node among its peers.

Contract: reliability.md, "Security" (TLS 1.2+, client certificates); ADR 0120. Files in, an ``ssl.SSLContext`` out; knows no
connection.
"""

import re
import ssl
from collections.abc import Callable, Mapping
from typing import Any

from toymq_py.errors import ConfigError
from toymq_py.text_files import read_text

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_ALTERNATIVE_NAMES = bytes.fromhex("0603551d11")
"""The identifier of the extension in DER."""
_DER_BOOLEAN, _DER_DNS_NAME = 0x01, 0x82


class Certificates:
    """The TLS context of new connections; ``reload`` does not change open ones."""

    def __init__(self, cert: str, key: str, client_ca: str | None = None) -> None:
        """Blocks.

        Args:
            cert: path of a PEM file: the server certificate, followed by its intermediates.
            key: path of a PEM file: the private key, unencrypted.
            client_ca: path of a PEM file: clients must show a certificate that one of these CAs has signed.

        Raises: ConfigError.
        """
        self._cert = cert
        self._key = key
        self._client_ca = client_ca
        self.host_names: frozenset[str] = frozenset()
        """The names that the certificate is for, in lower case; ``*.example.com`` stands for one more label."""
        self.context = self._load()

    def reload(self) -> None:
        """Read the files again. Blocks. Raises: ConfigError; then nothing has changed."""
        self.context = self._load()

    def _load(self) -> ssl.SSLContext:
        context = _context(ssl.PROTOCOL_TLS_SERVER, self._cert, self._key, self._client_ca)
        self.host_names = host_names_of(_pem(self._cert, "the certificate"))
        return context


class PeerCertificates(Certificates):
    """Both contexts of a node whose peers are nodes: each end shows its certificate and accepts what the CA has signed. The
    end that connects also wants the other's name or address in its certificate."""

    def __init__(self, cert: str, key: str, ca: str) -> None:
        """``cert``, ``key`` and ``ca`` are paths as in ``Certificates``. Blocks. Raises: ConfigError."""
        self._peers_ca = ca
        self.client_context: ssl.SSLContext
        """The context of connections to peers."""
        super().__init__(cert, key, ca)

    def _load(self) -> ssl.SSLContext:
        context = super()._load()
        self.client_context = _context(ssl.PROTOCOL_TLS_CLIENT, self._cert, self._key, self._peers_ca)
        return context


def _context(protocol: int, cert: str, key: str, ca: str | None) -> ssl.SSLContext:
    """``ca`` must have signed the other end's certificate; None asks for no certificate."""
    _check(cert, "the certificate", "CERTIFICATE-----")
    _check(key, "the key", "PRIVATE KEY-----")
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # a client could make us do it over and over
    try:
        context.load_cert_chain(cert, key, password=_no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"the key {key} is not that of the certificate {cert}") from None
        raise ConfigError(f"the certificate {cert} or the key {key} is damaged{_why(error)}") from None
    except _Encrypted:
        raise ConfigError(f"the key {key} is encrypted; the broker takes one without a password") from None
    if ca is not None:
        _check(ca, "the CA certificate file", "CERTIFICATE-----")
        try:
            context.load_verify_locations(ca)
        except ssl.SSLError as error:
            raise ConfigError(f"the CA certificate file {ca} is damaged{_why(error)}") from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def certified(certificates: Certificates | None) -> Callable[[], frozenset[str]]:
    """A function that returns ``host_names``; none of them without a certificate."""
    return frozenset if certificates is None else lambda: certificates.host_names


def names_of(certificate: Mapping[str, Any]) -> tuple[str, ...]:
    """The names in a certificate, as ``getpeercert`` returns it: its CN and the alternative names except addresses, without
    duplicates."""
    subject = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    others = [value for kind, value in certificate.get("subjectAltName", ()) if kind in ("DNS", "email", "URI")]
    return tuple(dict.fromkeys([*subject, *others]))


def host_names_of(pem: str) -> frozenset[str]:
    """The DNS names among the alternative names (RFC 5280, 4.2.1.6) of the first certificate of a PEM file. The module ``ssl``
    tells them of another's certificate only. Assumes that OpenSSL has accepted the file."""
    found = _PEM.search(pem)
    if found is None:  # an older kind, BEGIN X509 CERTIFICATE
        return frozenset()
    _, there, rest = ssl.PEM_cert_to_DER_cert(found[0]).partition(_ALTERNATIVE_NAMES)
    if not there:
        return frozenset()
    tag, value, rest = _der_element(rest)
    if tag == _DER_BOOLEAN:  # the extension is critical
        _, value, _ = _der_element(rest)
    _, rest, _ = _der_element(value)
    names = set()
    while rest:
        tag, value, rest = _der_element(rest)
        if tag == _DER_DNS_NAME:
            names.add(value.decode("ascii", "replace").lower())
    return frozenset(names)


def _der_element(der: bytes) -> tuple[int, bytes, bytes]:
    """Split DER. Returns: the tag and the value of its first element, and what follows."""
    begin, size = 2, der[1]
    if size & 0x80:
        begin += size & 0x7F
        size = int.from_bytes(der[2:begin])
    return der[0], der[begin : begin + size], der[begin + size :]


def reason_of(error: ssl.SSLError) -> str:
    """Describe why TLS failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    return (error.reason or str(error)).replace("_", " ").lower()


class _Encrypted(Exception):
    pass


def _no_password() -> str:
    """Keep OpenSSL from asking for a password on the terminal."""
    raise _Encrypted


def _why(error: ssl.SSLError) -> str:
    """OpenSSL's reason, if it gives one; for a truncated PEM file it does not."""
    return f": {error.reason.replace('_', ' ').lower()}" if error.reason else ""


def _check(path: str, what: str, mark: str) -> None:
    """Check a PEM file first, because OpenSSL's error names neither the file nor the part. Raises: ConfigError."""
    if mark not in _pem(path, what):
        raise ConfigError(f"{what} {path} is not a PEM file: no line ends with {mark}")


def _pem(path: str, what: str) -> str:
    return read_text(path, what, encoding="ascii", errors="replace")
