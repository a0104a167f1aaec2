"""In which order a lessee of several topics got the messages that it has not settled. ADR 0256.

Of what comes back without an answer one message counts an attempt: the one that the application most likely had. Within a topic
that is the lowest id (ADR 0053). Of several topics it is in the one whose message was delivered first: of those that had been
delivered before and came back, if there are any, since what kills a worker has mostly done so before.
"""

_Turns = dict[int, tuple[object, int]]
"""Turns with messages that are not settled, oldest first: whose they are, and how many."""


class DeliveryOrder:
    """Of one lessee. A turn is a stretch of deliveries of one kind from one table, with no other between them; turns ascend."""

    __slots__ = ("_again", "_fresh", "_newest", "_turn")

    def __init__(self) -> None:
        self._turn = 0
        self._newest: tuple[object, bool] | None = None
        self._again: _Turns = {}
        self._fresh: _Turns = {}

    def delivered(self, table: object, messages: int, *, again: bool) -> int:
        """Note a delivery; ``again``: of messages that had been delivered before. Returns: its turn, for ``settled``."""
        newest = self._newest
        if newest is None or newest[0] is not table or newest[1] is not again:
            self._turn += 1
            self._newest = (table, again)
        turn = self._turn
        turns = self._again if again else self._fresh
        known = turns.get(turn)
        turns[turn] = (table, messages if known is None else known[1] + messages)
        return turn

    def settled(self, turn: int, messages: int) -> None:
        """Note that messages of a turn have left their lessee, for whatever reason."""
        turns = self._fresh if turn in self._fresh else self._again
        known = turns.get(turn)
        if known is not None:
            if known[1] > messages:
                turns[turn] = (known[0], known[1] - messages)
            else:
                del turns[turn]

    def first(self, since: int = 0) -> tuple[object, bool] | None:
        """The table of the message that most likely was with the application, of turns from ``since`` on, and whether it had
        been delivered before."""
        for turns, again in ((self._again, True), (self._fresh, False)):
            for turn, (table, _) in turns.items():
                if turn >= since:
                    return table, again
        return None

    def timed_out(self) -> int:
        """A time-out has counted: what is delivered from now on is not behind that message. Returns: its first turn."""
        self._newest = None
        return self._turn + 1
