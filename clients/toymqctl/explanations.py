"""Turns an error into one line for the terminal: what failed and what to do."""

import re
import socket
import ssl
from contextlib import suppress

import toymq
from toymq.connect_failure import BETWEEN, what_failed
from toymq.url import DEFAULT_PORT, Address
from toymq_py.errors import ConnectionLost, NotLeader, ProtocolViolation, RequestError
from toymqctl.advice import remedy_of

PROBE_S = 2.0
"""Time to probe an address after an error."""

OF_ETCD = "see to its members (`etcdctl endpoint health`), their disks, and the network to them; toymq goes on by itself"
"""The remedy where etcd does not answer."""
_OF_OTHERS = re.compile(
    r" or GET /v1/\w+|, over HTTP PATCH$|: connect to toymq://TOKEN@host, or send HELLO 1 auth=TOKEN first$"
)
"""Hints for other clients: those of HTTP, for which the gateway has the same one for this program, and programs, whose URL may
hold the token, as --url may not."""
_CLIENT_CERTIFICATE = "--tls-cert and --tls-key (or TOYMQ_TLS_CERT, TOYMQ_TLS_KEY)"
_PROTOCOLS = {b"HTTP": "HTTP", b"AMQP": "AMQP"}
"""By the beginning of the answer to a request of HTTP."""
TLS_ADVICE = {
    "Hostname mismatch": "the certificate is for another host: use a name of the certificate in --url",
    "IP address mismatch": "the certificate is for another host: use a name of the certificate in --url",
    "certificate has expired": "renew the broker's certificate, or set this machine's clock",
    "certificate is not yet valid": "set this machine's clock, or wait",
    "CERTIFICATE_VERIFY_FAILED": "name the CA that signed the broker's certificate with --tls-ca or TOYMQ_TLS_CA",
    "CERTIFICATE_REQUIRED": f"name a client certificate with {_CLIENT_CERTIFICATE}",
    "HANDSHAKE_FAILURE": f"if the broker requires a client certificate, name one with {_CLIENT_CERTIFICATE}",
    "ALERT_UNKNOWN_CA": "the CA of `toymq serve --tls-client-ca`, another CA, must have signed --tls-cert",
    "ALERT_CERTIFICATE": "the broker does not take this client certificate: use another --tls-cert",
    "ALERT_BAD_CERTIFICATE": "the broker does not take this client certificate: use another --tls-cert",
}
"""Remedies by a part of OpenSSL's text; the first that fits."""

_ENDED = {
    "TAKEN_OVER": "for toymqctl: --mode shared, or another --consumer to have both",
    "DELETED": "the topic or the consumer was deleted",
}


def explain(address: Address, error: Exception) -> str:
    """Return an error as one line, with a remedy if one is known."""
    return "; ".join(filter(None, explained(address, error)))


def explained(address: Address, error: Exception) -> tuple[str, str]:
    """Return what an error says, and the remedy; "" if none is known or the text contains it."""
    if isinstance(error, toymq.ConnectFailed):
        return _unreachable(address, error)
    if isinstance(error, ProtocolViolation):
        if spoken := _spoken(address):
            return spoken, ""
        return str(error), f"is {address} the broker's TCP port?"
    if isinstance(error, toymq.SubscriptionEnded):
        return f"{error} ({_ENDED.get(error.code, 'see the broker')})", ""
    if isinstance(error, RequestError):
        return f"{error.code}: {_OF_OTHERS.sub('', str(error))}", remedy_of(error)
    return str(error), ""


def _unreachable(address: Address, error: toymq.ConnectFailed) -> tuple[str, str]:
    cause, start = error.__cause__, "start one with `make run` or `toymq serve`, or name another with --url"
    if isinstance(cause, NotLeader):
        return str(error), "`toymqctl cluster` says what is waited for"
    if isinstance(cause, ConnectionRefusedError):
        return (str(error), start) if BETWEEN in str(error) else (f"no broker at {address}: {start}", "")
    if isinstance(cause, socket.gaierror):
        return str(error), "check the host in --url"
    if address.tls:
        said = what_failed(address, cause) if isinstance(cause, ssl.SSLError) else str(error)
        return said, "" if "does not speak TLS" in said else _tls_advice(error, cause)  # that says what to do
    if spoken := _spoken(address):
        return spoken, ""
    hangs = "" if isinstance(cause, ConnectionLost) else " If it is, the broker hangs: look at its log and its machine"
    return str(error), f"is {address} the broker's TCP port?{hangs}"


def _tls_advice(error: toymq.ConnectFailed, cause: BaseException | None) -> str:
    """Return the advice for a TLS failure, by the text of OpenSSL's error. With TLS 1.3 a refused client certificate shows only
    after the handshake, as a lost connection."""
    text = f"{error} {cause}"
    for sign, advice in TLS_ADVICE.items():
        if sign in text:
            return advice
    return "does the broker use TLS on this port? toymq:// connects without TLS, and sends a token in the clear"


def _spoken(address: Address) -> str:
    """Say which other protocol the address speaks, and which address to use instead; "" if that is not known."""
    with suppress(OSError), socket.create_connection((address.host, address.port), PROBE_S) as connection:
        connection.sendall(b"HEAD / HTTP/1.0\r\n\r\n")
        protocol = _PROTOCOLS.get(connection.recv(4))  # of AMQP the header of its own version
        if protocol is not None:
            own = f"name the broker's TCP port, {DEFAULT_PORT} unless `toymq serve --listen` sets another"
            return f"{address} speaks {protocol}: {own}"
    return ""
