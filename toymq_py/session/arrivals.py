"""The order in which messages of several places came to one subscription. ADR 0256. Pure."""

from array import array

KEPT = 2048
"""The number of messages that are remembered at least; twice as many at most, in 8 bytes each. Few windows are larger."""


class Arrivals:
    """Remembers the last messages of a subscription, by a hash of topic and id. What it has forgotten came before them."""

    __slots__ = ("_forgotten", "_seen")

    def __init__(self) -> None:
        self._forgotten = 0
        self._seen = array("q")

    @property
    def count(self) -> int:
        """The number of messages that came, which is the place of the next one."""
        return self._forgotten + len(self._seen)

    def note(self, frame: bytes) -> None:
        """Note a message that came; ``frame`` is its MSG."""
        end = frame.index(b" ", frame.index(b" ", 4) + 1)
        seen = self._seen
        seen.append(hash(frame[4:end]))
        if len(seen) == 2 * KEPT:
            del seen[:KEPT]
            self._forgotten += KEPT

    def place_of(self, topic: bytes, msg_id: bytes) -> int:
        """The place of a message's last delivery among those that came, from 0; -1 when it is forgotten."""
        seen = self._seen
        try:
            return self.count - 1 - seen[::-1].index(hash(b"%b %b" % (topic, msg_id)))
        except ValueError:
            return -1
