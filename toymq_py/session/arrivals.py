"""The order in which the messages of several workers or groups came to one subscription. ADR 0256. Pure."""

from array import array

KEPT = 2048
"""The number of messages that are remembered at least; twice as many at most, in 8 bytes each. Few windows are larger."""


class Arrivals:
    """Remembers the order of a subscription's last messages, by a hash of topic and id. Forgotten messages came before them."""

    __slots__ = ("_forgotten", "_seen")

    def __init__(self) -> None:
        self._forgotten = 0
        self._seen = array("q")

    @property
    def count(self) -> int:
        """How many messages have come so far; the next one gets this position."""
        return self._forgotten + len(self._seen)

    def note(self, frame: bytes) -> None:
        """Note that a message came; ``frame`` is its MSG frame."""
        end = frame.index(b" ", frame.index(b" ", 4) + 1)
        seen = self._seen
        seen.append(hash(frame[4:end]))
        if len(seen) == 2 * KEPT:
            del seen[:KEPT]
            self._forgotten += KEPT

    def place_of(self, topic: bytes, msg_id: bytes) -> int:
        """The position of a message's last delivery in the order of arrival, from 0; -1 when it is forgotten."""
        seen = self._seen
        try:
            return self.count - 1 - seen[::-1].index(hash(b"%b %b" % (topic, msg_id)))
        except ValueError:
            return -1
