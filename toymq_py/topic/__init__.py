"""One topic. Contract: delivery.md, storage.md."""

from toymq_py.topic.subscription import Delivery, Registration, Subscription
from toymq_py.topic.topic import Published, Topic, unopened_topic

__all__ = ["Delivery", "Published", "Registration", "Subscription", "Topic", "unopened_topic"]
