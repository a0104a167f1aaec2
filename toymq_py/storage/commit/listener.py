"""Interface through which a committer reports the outcome of a batch."""

from collections.abc import Sequence

from toymq_py.storage.segment import Producers


class CommitListener:
    """Gets the outcome of each batch of one ``Committer``, on the event loop: ``scheduled``, ``synced``, ``stored``,
    ``committed``, in this order; or ``failed``. This base class ignores all."""

    def scheduled(self, first_id: int, deliver_at_ns: Sequence[int]) -> None:
        """Delayed records were committed: the first id, and when each is due. Readers cannot see them yet."""

    def synced(self, seconds: float) -> None:
        """The disk took so many seconds to sync."""

    def stored(self, seconds: float, count: int) -> None:
        """Messages that one loop pass appended became durable, so many seconds after their append."""

    def committed(self, first_id: int, next_id: int, keys: list[bytes], producers: Producers) -> None:
        """A batch is durable, with these plain keys and the last sequences of these producers. The waiters of its commit are
        told next."""

    def failed(self, keys: list[bytes]) -> None:
        """A batch with these keys was refused."""

    def sealed(self) -> None:
        """A segment was sealed. Its successor is there if it could be made."""

    def producers_since(self, first_id: int) -> Producers:
        """The committed producers from an id on, for the sidecar of a segment that begins there."""
        return {}
