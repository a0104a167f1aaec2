"""The refused producers of a connection, each with the sequence it has to repeat.

Contract: protocol.md, "PUB ... seq=" and OUT_OF_SEQUENCE. A producer sends ahead of the replies. If a publish was refused and a
later one stored, the retry of the first would count as a duplicate and be lost. The same would happen after MOVED, when a topic
comes to this node between two publishes (ADR 0188): the later one is answered with MOVED and this node's address, so that the
client repeats it behind the first. Knows no transport and no broker.
"""

from collections.abc import Callable, Sequence
from functools import partial

from toymq_py.errors import OutOfSequence, RequestError
from toymq_py.topic import Commit, CommitState

REFUSED_MAX = 65_536
"""Most refused producers of one connection, about 10 MiB. With more, the client has to connect again."""

MOVED_MAX = 4096
"""Most producers that were told MOVED. Beyond, the oldest is forgotten: they go elsewhere at once."""

Producer = tuple[str, bytes]
"""Topic and name of a producer."""


class RefusedSequences:
    """The sequence that each refused producer has to repeat, and the sequences whose commit is pending."""

    __slots__ = ("_here", "_moved", "_overflow", "_refused", "_watched")

    def __init__(self, here: Callable[[str], RequestError]) -> None:
        """``here`` returns the MOVED error that names this node, for a topic."""
        self._here = here
        self._moved: dict[Producer, int] = {}
        self._refused: dict[Producer, int] = {}
        self._overflow = False
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
                del self._moved[producer]
            refused = self._refused.get(producer)
            if refused is None:
                if self._overflow:
                    return row
            elif sequences[row] > refused:
                return row
            else:
                del self._refused[producer]
        return len(producers)

    def error(self, topic: str, producer: bytes) -> RequestError:
        """The error for a row that is not admitted."""
        if (topic, producer) in self._moved:
            return self._here(topic)
        refused = self._refused.get((topic, producer))
        if refused is None:
            return OutOfSequence("too many producers of this connection were refused: connect again")
        return OutOfSequence(f"{refused} was refused: repeat it and go on from there")

    def refuse(self, topic: str, producers: Sequence[bytes], sequences: Sequence[int], *, moved: bool = False) -> None:
        """Remember publishes that were answered with an error; ``moved``: the error was MOVED."""
        for producer, sequence in _lowest(topic, producers, sequences).items():
            if moved:
                self._moved[producer] = min(sequence, self._moved.pop(producer, sequence))
                if len(self._moved) > MOVED_MAX:
                    del self._moved[next(iter(self._moved))]
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
        if known is None and len(self._refused) >= REFUSED_MAX:
            self._overflow = True
        elif known is None or sequence < known:
            self._refused[producer] = sequence


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
