"""Sessions: one per connection. Contract: delivery.md, "Sessions"; ADR 0005, 0007."""

from toymq_py.session.session import LINGER_S, Session
from toymq_py.session.tls import TlsProtocol
from toymq_py.session.transport import SessionProtocol, refuse
from toymq_py.session.turns import Turns

__all__ = ["LINGER_S", "Session", "SessionProtocol", "TlsProtocol", "Turns", "refuse"]
