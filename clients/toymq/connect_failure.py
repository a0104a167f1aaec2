"""Error texts of a failed attempt to connect: the address, the cause, and the remedy. For both clients."""

import os
import ssl
from collections.abc import Sequence

from toymq.errors import CertificateRefused, ConnectFailed
from toymq.url import Address
from toymq_py.errors import DirectoryLost, NotLeader, ProtocolViolation, RequestError, ToymqError

_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "UNKNOWN_PROTOCOL")
"""OpenSSL's reasons when the peer's answer is not TLS."""
BETWEEN = "; "
"""The text between those of two addresses."""


def connect_failed(address: Address, error: BaseException) -> ConnectFailed:
    """Make the error of one failed attempt to connect to an address."""
    if isinstance(error, NotLeader):
        return _not_leader(address, error)
    kind, remedy = ConnectFailed, ""
    if isinstance(error, ssl.SSLCertVerificationError):
        kind = CertificateRefused
        if "mismatch" not in error.verify_message:
            remedy = ": connect with ssl=ssl.create_default_context(cafile=…), the CA that signed it"
    failed = kind(what_failed(address, error) + remedy)
    failed.__cause__ = error
    return failed


def as_failure(address: Address, error: OSError | ToymqError) -> ToymqError:
    """Return the error of one attempt as it is, if the broker answered with it; else, and if a node answered that it does not
    lead its cluster, a ConnectFailed."""
    return error if isinstance(error, ToymqError) and not isinstance(error, NotLeader) else connect_failed(address, error)


def _not_leader(address: Address, error: NotLeader) -> ConnectFailed:
    named = f"names {error.leader}" if error.leader is not None else "knows no leader now"
    failed = ConnectFailed(f"{address} does not lead its cluster, and {named}")
    failed.__cause__ = error
    return failed


def what_failed(address: Address, error: BaseException | None) -> str:
    """Describe the failure at an address, without the remedies that fit only in a Python program."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of {address} is not accepted: {error.verify_message or error.reason}"
    if isinstance(error, ssl.SSLError):
        if error.reason in _NO_TLS:
            return f"{address} does not speak TLS: name the broker's TLS port, or toymq:// where no TLS is meant"
        return f"no TLS with {address}: {error.reason or error}"
    text = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    if isinstance(error, ConnectionError) and error.errno:
        text = os.strerror(error.errno)  # asyncio's own repeats the address instead
    return f"no broker at {address}: {text}"


def of_a_round(failures: Sequence[ToymqError]) -> ToymqError:
    """The error of a round in which every address failed: the last error, with the texts of all. Its ``__cause__`` is the
    answer of a cluster node, if one came, since the other nodes may be down."""
    last = failures[-1]
    if len(failures) == 1 or not isinstance(last, ConnectFailed):
        return last
    kind = CertificateRefused if all(isinstance(each, CertificateRefused) for each in failures) else ConnectFailed
    together = kind(BETWEEN.join(dict.fromkeys(map(str, failures))))
    causes = [each.__cause__ for each in failures]
    together.__cause__ = next((each for each in causes if isinstance(each, NotLeader)), causes[-1])
    return together


def is_hopeless(error: ToymqError) -> bool:
    """Whether another round of attempts would fail in the same way: the broker refused the client, the peer is not a broker,
    its certificate is not accepted, or the directory of ``toymq.open`` is gone."""
    return isinstance(error, RequestError | ProtocolViolation | CertificateRefused | DirectoryLost) and not error.retryable
