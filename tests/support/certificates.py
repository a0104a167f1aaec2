"""Self-signed certificates for tests: each is its own CA."""

import ssl
from pathlib import Path

TLS = Path(__file__).with_name("tls")
CERT, KEY = str(TLS / "cert.pem"), str(TLS / "key.pem")
"""The broker's, for 127.0.0.1 and localhost."""
CLIENT_CERT, CLIENT_KEY = str(TLS / "client.pem"), str(TLS / "client-key.pem")
ENCRYPTED_KEY = str(TLS / "encrypted-key.pem")


def client_context(*, certificate: bool = False) -> ssl.SSLContext:
    """Believes the broker's certificate; with ``certificate`` it shows one of its own."""
    context = ssl.create_default_context(cafile=CERT)
    if certificate:
        context.load_cert_chain(CLIENT_CERT, CLIENT_KEY)
    return context
