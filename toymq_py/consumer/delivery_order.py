"""The delivery order of a lessee of several topics: in which order it got the messages that it has not settled. ADR 0256, 0265,
0267.

When leases come back without an answer, one message counts an attempt: the one that the application most likely had, which is
the first that this lessee got. Belongs to the event loop.
"""


class DeliveryOrder:
    """One lessee's delivery order. A turn is a stretch of deliveries from one table with ascending ids; turns ascend."""

    __slots__ = ("_highest", "_newest", "_turn", "_turns")

    def __init__(self) -> None:
        self._highest = 0
        self._turn = 0
        self._newest: object = None
        self._turns: dict[int, tuple[object, int]] = {}  # those with messages, oldest first: whose they are, and how many

    def delivered(self, table: object, first: int, last: int, messages: int) -> int:
        """Note a delivery of messages with ascending ids. Returns: its turn, for ``settled``."""
        if self._newest is not table or first < self._highest:
            self._turn += 1
            self._newest = table
        self._highest = last
        turn = self._turn
        known = self._turns.get(turn)
        self._turns[turn] = (table, messages if known is None else known[1] + messages)
        return turn

    def settled(self, turn: int, messages: int) -> None:
        """Note that messages of a turn have left their lessee, for whatever reason."""
        known = self._turns.get(turn)
        if known is None:
            return
        if known[1] > messages:
            self._turns[turn] = (known[0], known[1] - messages)
        else:
            del self._turns[turn]

    def first(self, since: int = 0) -> object | None:
        """The table of the message that was delivered before the others, of the turns from ``since`` on."""
        return next((table for turn, (table, _) in self._turns.items() if turn >= since), None)

    def end_turn(self) -> int:
        """End the present turn: later deliveries do not stand behind earlier ones. Returns: the next turn."""
        self._newest = None
        return self._turn + 1
