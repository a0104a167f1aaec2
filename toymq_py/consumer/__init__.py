"""Delivery state of the consumers of a topic: leases, acks, attempts. Pure: no I/O, no clock."""

from toymq_py.consumer.common_acks import CommonAcks
from toymq_py.consumer.consumer import Consumer
from toymq_py.consumer.delivery_order import DeliveryOrder
from toymq_py.consumer.delivery_policy import DeliveryPolicy
from toymq_py.consumer.failure_book import FailureBudget
from toymq_py.consumer.id_set import IdSet
from toymq_py.consumer.key_lanes import KeyLanes
from toymq_py.consumer.lease_run import HeldRange, Lessee
from toymq_py.consumer.message_counts import MessageCounts
from toymq_py.consumer.priority_lanes import PriorityLanes
from toymq_py.consumer_snapshot import ConsumerSnapshot

__all__ = [
    "CommonAcks",
    "Consumer",
    "ConsumerSnapshot",
    "DeliveryOrder",
    "DeliveryPolicy",
    "FailureBudget",
    "HeldRange",
    "IdSet",
    "KeyLanes",
    "Lessee",
    "MessageCounts",
    "PriorityLanes",
]
