"""The refused producers of a connection, each with the sequence it has to repeat.

Contract: protocol.md, "PUB ... seq=" and OUT_OF_SEQUENCE. A producer sends ahead of the replies. If a publish was refused and a
later one stored, the retry of the first would count as a duplicate and be lost. The same would happen after MOVED, when a topic
comes to this node between two publishes (ADR 0188): the later one is answered with MOVED and this node's address, so that the
client repeats it behind the first. Knows no transport and no broker.
"""

from collections.abc import Callable, Sequence
from functools import partial

from toymq_py.auth.quotas import Seat
from toymq_py.errors import OutOfSequence, RequestError
from toymq_py.topic import Commit, CommitState

REFUSED_BYTES_MAX = 4 * 1024 * 1024
"""Most bytes of the refused producers of one connection: room for the 8,192 that a topic knows, with names of 100 bytes."""
ENTRY_COST_BYTES = 320
"""What an entry takes beside its names: a row of a table that may just have grown, a tuple, two strings and an integer."""

MOVED_MAX = 4096
"""Most producers that were told MOVED. Beyond, the oldest is forgotten: they go elsewhere at once."""

Producer = tuple[str, bytes]
"""Topic and name of a producer."""


class RefusedSequences:
    """The sequence that each refused producer has to repeat, and the sequences whose commit is pending.

    Holds ``REFUSED_BYTES_MAX``, and where its seat is crowded ``floor_bytes``. Beyond, a producer that is not known here cannot
    be told from one that was refused: its publish is refused, and the session ends, since the client has to connect again.
    """

    __slots__ = ("_here", "_moved", "_overflow", "_refused", "_watched", "ends_session", "held_bytes", "seat")

    def __init__(self, here: Callable[[str], RequestError]) -> None:
        """``here`` returns the MOVED error that names this node, for a topic."""
        self._here = here
        self._moved: dict[Producer, int] = {}
        self._refused: dict[Producer, int] = {}
        self._overflow = False
        self.ends_session = False
        """Whether the client was told to connect again."""
        self.held_bytes = 0
        """The bytes of the tables; not those of pending commits, which count as replies."""
        self.seat: Seat | None = None
        """The connection's share of the limits."""
        self._watched: dict[Commit, dict[Producer, int]] = {}

    def admit(
        self, topic: str, producers: Sequence[bytes], sequences: Sequence[int], start: int,
        stored: Callable[[bytes], int] = lambda producer: -1,
    ) -> int:  # fmt: skip
        """Find the first row from ``start`` on that must be refused; ``len(producers)`` when there is none.

        A producer that repeats its refused sequence, or an earlier one, is admitted again.

        Args:
            stored: returns the highest sequence of a producer that the topic has; -1 for none. This includes sequences that
                were stored while the topic was on another node.
        """
        if not self._refused and not self._overflow and not self._moved:
            return len(producers)
        for row in range(start, len(producers)):
            producer = topic, producers[row]
            if (moved := self._moved.get(producer)) is not None:
                if sequences[row] > moved and stored(producers[row]) < moved:
                    return row
                self._forget(self._moved, producer)
            refused = self._refused.get(producer)
            if refused is None:
                if self._overflow:
                    return row
            elif sequences[row] > refused:
                return row
            else:
                self._forget(self._refused, producer)
        return len(producers)

    def error(self, topic: str, producer: bytes) -> RequestError:
        """The error for a row that is not admitted."""
        if (topic, producer) in self._moved:
            return self._here(topic)
        refused = self._refused.get((topic, producer))
        if refused is None:
            self.ends_session = True
            return OutOfSequence("too many producers of this connection were refused: it is closed, connect again")
        return OutOfSequence(f"{refused} was refused: repeat it and go on from there")

    def refuse(self, topic: str, producers: Sequence[bytes], sequences: Sequence[int], *, moved: bool = False) -> None:
        """Remember publishes that were answered with an error; ``moved``: the error was MOVED."""
        for producer, sequence in _lowest(topic, producers, sequences).items():
            if moved:
                before = self._moved.get(producer, sequence)
                self._forget(self._moved, producer)
                if len(self._moved) >= MOVED_MAX:
                    self._forget(self._moved, next(iter(self._moved)))
                self._add(self._moved, producer, min(sequence, before))
            else:
                self._refuse(producer, sequence)

    def watch(self, commit: Commit, topic: str, producers: Sequence[bytes], sequences: Sequence[int]) -> None:
        """Refuse these rows if the commit fails, before the connection's next command."""
        if commit.state is not CommitState.PENDING:
            return
        watched = self._watched.get(commit)
        if watched is None:
            watched = self._watched[commit] = {}
            commit.add_waiter(partial(self._resolved, commit))
        for producer, sequence in _lowest(topic, producers, sequences).items():
            if sequence < watched.get(producer, sequence + 1):
                watched[producer] = sequence

    def _resolved(self, commit: Commit) -> None:
        watched = self._watched.pop(commit)
        if commit.state is CommitState.FAILED:
            for producer, sequence in watched.items():
                self._refuse(producer, sequence)

    def _refuse(self, producer: Producer, sequence: int) -> None:
        known = self._refused.get(producer)
        if known is not None:
            self._refused[producer] = min(sequence, known)
        elif not self._add(self._refused, producer, sequence):
            self._overflow = True

    def _add(self, table: dict[Producer, int], producer: Producer, sequence: int) -> bool:
        """Add an entry, in the place of the oldest producers that were told MOVED. Returns: False when there is no room."""
        cost = _cost(producer)
        while not self._has_room(cost):
            if not self._moved:
                return False
            self._forget(self._moved, next(iter(self._moved)))
        table[producer] = sequence
        self.held_bytes += cost
        return True

    def _has_room(self, more_bytes: int) -> bool:
        held_bytes, seat = self.held_bytes + more_bytes, self.seat
        return held_bytes <= REFUSED_BYTES_MAX and (seat is None or held_bytes <= seat.floor_bytes or not seat.crowded)

    def _forget(self, table: dict[Producer, int], producer: Producer) -> None:
        if table.pop(producer, None) is not None:
            self.held_bytes -= _cost(producer)


def _cost(producer: Producer) -> int:
    topic, name = producer
    return ENTRY_COST_BYTES + len(topic) + len(name)


def _lowest(topic: str, producers: Sequence[bytes], sequences: Sequence[int]) -> dict[Producer, int]:
    """The lowest sequence of each producer."""
    if producers.count(producers[0]) == len(producers):
        return {(topic, producers[0]): min(sequences)}
    lowest: dict[Producer, int] = {}
    for name, sequence in zip(producers, sequences, strict=True):
        producer = topic, name
        if sequence < lowest.get(producer, sequence + 1):
            lowest[producer] = sequence
    return lowest
