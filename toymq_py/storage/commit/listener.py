"""Interface through which a committer reports the outcome of a batch."""

from collections.abc import Sequence

from toymq_py.storage.segment import Producers


class CommitListener:
    """Gets the outcome of each batch of one ``Committer``, on the event loop: ``scheduled``, ``synced``, ``stored``,
    ``committed``, in this order; or ``failed``. This base class ignores all."""

    def scheduled(self, first_id: int, deliver_at_ns: Sequence[int]) -> None:
        """Called when delayed records were committed, with the first id and each record's due time. Readers cannot see them
        yet."""

    def synced(self, seconds: float) -> None:
        """Called after a sync, with the ``seconds`` that it took."""

    def stored(self, seconds: float, count: int) -> None:
        """Called when ``count`` messages that one loop pass appended are durable, ``seconds`` after their append."""

    def committed(self, first_id: int, next_id: int, keys: list[bytes], producers: Producers) -> None:
        """Called when a batch is durable, with its plain keys and the last sequences of its producers. The waiters of its
        commit are called next."""

    def failed(self, keys: list[bytes]) -> None:
        """Called when a batch with these keys was refused."""

    def sealed(self) -> None:
        """Called when a segment was sealed. Its successor exists if it could be made."""

    def producers_since(self, first_id: int) -> Producers:
        """The committed producers from an id on, for the sidecar of a segment that begins there."""
        return {}
