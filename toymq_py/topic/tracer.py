"""Interface of a tracer, which follows messages. Not compiled, like the tracers that implement it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from toymq_py.metrics import Metrics
from toymq_py.records import IdRange
from toymq_py.storage.commit.batch import Appended
from toymq_py.topic.channel import Delivery


class Tracer(ABC):
    """Follows messages through the broker. Called on the event loop, once for each run of messages; it must not raise."""

    @abstractmethod
    def exemplify(self, metrics: Metrics) -> None:
        """Take the metrics whose histograms may name traced messages as exemplars. Called first."""

    @abstractmethod
    def appended(self, topic: str, outcomes: Sequence[Appended], headers: Sequence[bytes]) -> None:
        """Called when messages were appended and wait for their commits. ``headers``: a block for each message, in order, b""
        for none."""

    @abstractmethod
    def synced(self, seconds: float) -> None:
        """Called when a batch was synced, before the commits of its messages are reported.

        Args:
            seconds: how long the fsync took.
        """

    @abstractmethod
    def delivered(self, delivery: Delivery) -> None:
        """Called when messages were delivered to a consumer. Some of them have headers."""

    @abstractmethod
    def settled(self, what: str, topic: str, consumer: str, ids: Sequence[IdRange]) -> None:
        """Called when messages were acked or given back. ``what``: "ack" or "nack". Ids that were not delivered may be among
        them."""
