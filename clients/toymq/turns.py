"""In which order a client tries its addresses. Sans-IO; for both clients.

The order is that of the user. It begins behind an address whose connection was lost by silence: what hangs there accepts
connections, too. A node of a cluster that does not lead says which one does: that one is next.
"""

from collections import deque
from collections.abc import Iterator, Sequence

from toymq.url import Address
from toymq_py.errors import NotLeader, ToymqError


class Turns:
    """The addresses of one client."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = addresses
        self._first = 0
        self._waiting: deque[Address] = deque()

    def round(self) -> Iterator[Address]:
        """Each address once."""
        self._waiting = deque((*self._addresses[self._first :], *self._addresses[: self._first]))
        self._first = 0
        while self._waiting:
            yield self._waiting.popleft()

    @property
    def is_last(self) -> bool:
        """Whether the address that came last is the last of its round."""
        return not self._waiting

    def failed(self, error: ToymqError) -> None:
        """The address that came last has answered so."""
        if not isinstance(error, NotLeader) or error.leader is None:
            return
        for address in self._waiting:
            if str(address) == error.leader:
                self._waiting.remove(address)
                self._waiting.appendleft(address)
                return

    def silent(self, address: Address) -> None:
        """A connection to an address was lost because nothing came: begin behind it."""
        self._first = (self._addresses.index(address) + 1) % len(self._addresses)
