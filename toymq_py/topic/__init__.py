"""One topic. Contract: delivery.md, storage.md."""

from toymq_py.storage.commit.batch import Appended, Commit, CommitState
from toymq_py.topic.careful_start import begin_carefully
from toymq_py.topic.channel import Channel, Delivery, Subscription
from toymq_py.topic.delivered_ids import DeliveredIds
from toymq_py.topic.delivery_permit import DeliveryPermit
from toymq_py.topic.description import is_attached, oldest_due_ns, unopened_topic
from toymq_py.topic.publisher import Duplicate, Published, Refused
from toymq_py.topic.registration import Registration
from toymq_py.topic.services import TopicServices
from toymq_py.topic.ticker import Ticker
from toymq_py.topic.topic import Topic
from toymq_py.topic.traced_topic import TracedTopic
from toymq_py.topic.tracer import Tracer

__all__ = [
    "Appended",
    "Channel",
    "Commit",
    "CommitState",
    "DeliveredIds",
    "Delivery",
    "DeliveryPermit",
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
    "begin_carefully",
    "is_attached",
    "oldest_due_ns",
    "unopened_topic",
]
