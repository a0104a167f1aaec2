"""Client of the toymq broker for asyncio; ``toymq_client.sync`` is the blocking one. Importing it loads no broker module."""

from toymq_client.client import Client, Publishing, connect
from toymq_client.errors import (
    ClientClosed,
    ConnectFailed,
    ConsumerDeleted,
    RequestTimeout,
    SubscriptionEnded,
    TakenOver,
)
from toymq_client.message import Receipt
from toymq_client.options import Connected, Disconnected
from toymq_client.subscription import Message, Subscription
from toymq_py.errors import ConfigError, ConnectionLost, ProtocolViolation, RequestError, ToymqError

__all__ = [
    "Client", "ClientClosed", "ConfigError", "ConnectFailed", "Connected", "ConnectionLost", "ConsumerDeleted", "Disconnected",
    "Message", "ProtocolViolation", "Publishing", "Receipt", "RequestError", "RequestTimeout", "Subscription",
    "SubscriptionEnded", "TakenOver", "ToymqError", "connect",
]  # fmt: skip
