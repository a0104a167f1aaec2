"""Client of the toymq broker. Importing it loads no broker module."""

from toymq_client.blocking import Client, Message, Receipt, Subscription, SubscriptionEnded, connect

__all__ = ["Client", "Message", "Receipt", "Subscription", "SubscriptionEnded", "connect"]
