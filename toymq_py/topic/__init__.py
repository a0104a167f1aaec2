"""One topic. Contract: delivery.md, storage.md."""

from toymq_py.storage.batch import Appended
from toymq_py.topic.channel import Channel, Delivery, Registration, Subscription
from toymq_py.topic.numbers import unopened_topic
from toymq_py.topic.publishing import Duplicate, Published, Refused
from toymq_py.topic.services import TopicServices
from toymq_py.topic.ticker import Ticker
from toymq_py.topic.topic import Topic
from toymq_py.topic.traced import TracedTopic
from toymq_py.topic.tracer import Tracer

__all__ = [
    "Appended",
    "Channel",
    "Delivery",
    "Duplicate",
    "Published",
    "Refused",
    "Registration",
    "Subscription",
    "Ticker",
    "Topic",
    "TopicServices",
    "TracedTopic",
    "Tracer",
    "unopened_topic",
]
