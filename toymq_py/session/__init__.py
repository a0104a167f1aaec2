"""Sessions: one per connection. Contract: delivery.md, "Sessions"; ADR 0005, 0007."""

from toymq_py.session.session import Session
from toymq_py.session.transport import SessionProtocol, refuse
from toymq_py.session.turns import Turns

__all__ = ["Session", "SessionProtocol", "Turns", "refuse"]
