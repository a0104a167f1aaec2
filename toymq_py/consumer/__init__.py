"""Who has seen what: pure state of a topic's consumers, no I/O, no clock."""

from toymq_py.consumer.common import CommonAcks
from toymq_py.consumer.failures import FailureBudget
from toymq_py.consumer.idset import IdSet
from toymq_py.consumer.policy import DeliveryPolicy
from toymq_py.consumer.run import Held, Lessee
from toymq_py.consumer.snapshot import ConsumerSnapshot
from toymq_py.consumer.state import Consumer, Counts

__all__ = ["CommonAcks", "Consumer", "ConsumerSnapshot", "Counts", "DeliveryPolicy", "FailureBudget", "Held", "IdSet", "Lessee"]
