"""The interface of a tracer, which is called with what happens to messages. Not compiled, like the tracers below it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from toymq_py.metrics import Metrics
from toymq_py.records import IdRange
from toymq_py.storage.commit.batch import Appended
from toymq_py.topic.channel import Delivery


class Tracer(ABC):
    """Follows messages through the broker; what it raises is a bug. Called on the event loop, once for each run."""

    @abstractmethod
    def exemplify(self, metrics: Metrics) -> None:
        """Called first, with the metrics whose histograms may name traced messages as exemplars."""

    @abstractmethod
    def appended(self, topic: str, outcomes: Sequence[Appended], headers: Sequence[bytes]) -> None:
        """These wait for their commits. ``headers``: a block for each message, in order, b"" for none."""

    @abstractmethod
    def synced(self, seconds: float) -> None:
        """The time that the disk took for the batch of the next commit."""

    @abstractmethod
    def delivered(self, delivery: Delivery) -> None:
        """A consumer is handed these. Some of them have headers."""

    @abstractmethod
    def settled(self, what: str, topic: str, consumer: str, ids: Sequence[IdRange]) -> None:
        """``what``: "ack" or "nack". Ids that were not delivered may be among them."""
