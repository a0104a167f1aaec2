"""The interface through which a committer tells what became of a batch."""

from collections.abc import Sequence

from toymq_py.storage.segment import Producers


class CommitListener:
    """Told by one ``Committer``, on the event loop. Of a batch in this order: ``scheduled``, ``synced``, ``stored``,
    ``committed``; or ``failed``. As it is: does nothing."""

    def scheduled(self, first_id: int, deliver_at_ns: Sequence[int]) -> None:
        """A committed run has delays: its first id, and when each record is due. Readers cannot see them yet."""

    def synced(self, seconds: float) -> None:
        """The disk took so long to sync."""

    def stored(self, seconds: float, count: int) -> None:
        """So many messages that one loop pass appended became durable, so long after their append."""

    def committed(self, first_id: int, next_id: int, keys: list[bytes], producers: Producers) -> None:
        """A batch is durable, with these plain keys, and left its producers there. The waiters of its commit are told next."""

    def failed(self, keys: list[bytes]) -> None:
        """A batch with these keys did not become durable."""

    def sealed(self) -> None:
        """A segment was sealed; its successor is there if that could be made."""

    def producers_since(self, first_id: int) -> Producers:
        """The committed producers from an id on: a segment that begins there is sealed."""
        return {}
