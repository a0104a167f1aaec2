"""The blocking client: the names of ``toymq_client`` without ``async``."""

from toymq_client.sync.client import Client, connect
from toymq_client.sync.subscription import Message, Subscription

__all__ = ["Client", "Message", "Subscription", "connect"]
