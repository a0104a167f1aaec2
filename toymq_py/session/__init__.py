"""Sessions: one per connection. Contract: delivery.md, "Sessions"; ADR 0005, 0007."""

from toymq_py.net.fair_queue import FairQueue
from toymq_py.session.errands import Errands
from toymq_py.session.session import LINGER_S, Session
from toymq_py.session.transport import SessionProtocol, refuse

__all__ = ["LINGER_S", "Errands", "FairQueue", "Session", "SessionProtocol", "refuse"]
