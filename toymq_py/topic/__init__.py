"""One topic. Contract: delivery.md, storage.md."""

from toymq_py.topic.subscription import Delivery, Subscription
from toymq_py.topic.topic import Published, Topic

__all__ = ["Delivery", "Published", "Subscription", "Topic"]
