"""Delivery state of the consumers of a topic: leases, acks, attempts. Pure: no I/O, no clock."""

from toymq_py.consumer.consumer import Consumer
from toymq_py.consumer.counts import Counts
from toymq_py.consumer.failures import FailureBudget
from toymq_py.consumer.id_set import IdSet
from toymq_py.consumer.lease import Held, Lessee
from toymq_py.consumer.policy import DeliveryPolicy
from toymq_py.consumer.shared_acks import CommonAcks
from toymq_py.consumer.snapshot import ConsumerSnapshot

__all__ = ["CommonAcks", "Consumer", "ConsumerSnapshot", "Counts", "DeliveryPolicy", "FailureBudget", "Held", "IdSet", "Lessee"]
