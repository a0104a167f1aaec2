"""Self-signed certificates for tests: each is its own CA."""

import ssl
from contextlib import suppress
from pathlib import Path

TLS = Path(__file__).with_name("tls")
for _key in TLS.glob("*key.pem"):  # git does not keep this mode, and the broker warns of a key that others may read
    with suppress(OSError):
        _key.chmod(0o600)
CERT, KEY = str(TLS / "cert.pem"), str(TLS / "key.pem")
"""The broker's, for 127.0.0.1 and localhost."""
CLIENT_CERT, CLIENT_KEY = str(TLS / "client.pem"), str(TLS / "client-key.pem")
NAMED_CERT, NAMED_KEY = str(TLS / "named.pem"), str(TLS / "named-key.pem")
"""A client's: its CN is billing, other names are billing.example, shipping and ann@example.com."""
MACHINES_CERT, MACHINES_KEY = str(TLS / "machines.pem"), str(TLS / "machines-key.pem")
"""Of the nodes on the first three of ``machines.Machines``, by their addresses for data."""
HOSTS_CERT = str(TLS / "hosts.pem")
"""For queue.example, *.wild.example, and more host names than a length of one byte has room for; its extension is critical."""
NAMELESS_CERT = str(TLS / "nameless.pem")
"""It has a CN, and no alternative names."""
ENCRYPTED_KEY = str(TLS / "encrypted-key.pem")


def client_context(*, certificate: bool = False) -> ssl.SSLContext:
    """Return a TLS context that trusts the broker's certificate; with ``certificate`` it presents a client certificate."""
    context = ssl.create_default_context(cafile=CERT)
    if certificate:
        context.load_cert_chain(CLIENT_CERT, CLIENT_KEY)
    return context


def named_context() -> ssl.SSLContext:
    """Return a TLS context that presents the client certificate ``NAMED_CERT``."""
    context = ssl.create_default_context(cafile=CERT)
    context.load_cert_chain(NAMED_CERT, NAMED_KEY)
    return context
