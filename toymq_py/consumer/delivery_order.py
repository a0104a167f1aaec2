"""The delivery order of a lessee of several topics: in which order it got the messages that it has not settled. ADR 0256, 0265,
0267.

When leases end without an answer, one message counts an attempt: the one that the application most likely works on, which is
the first unsettled one that this lessee got. Belongs to the event loop.
"""


class DeliveryOrder:
    """One lessee's delivery order. A turn is a stretch of deliveries with ascending ids from one lease table, so from one
    topic; the turns are numbered in order."""

    __slots__ = ("_highest", "_newest", "_turn", "_turns")

    def __init__(self) -> None:
        self._highest = 0
        self._turn = 0
        self._newest: object = None
        self._turns: dict[int, tuple[object, int]] = {}  # those with messages, oldest first: whose they are, and how many

    def delivered(self, table: object, first: int, last: int, messages: int) -> int:
        """Note a delivery of messages with ascending ids. Returns: the number of its turn, for ``settled``."""
        if self._newest is not table or first < self._highest:
            self._turn += 1
            self._newest = table
        self._highest = last
        turn = self._turn
        known = self._turns.get(turn)
        self._turns[turn] = (table, messages if known is None else known[1] + messages)
        return turn

    def settled(self, turn: int, messages: int) -> None:
        """Note that messages of a turn are no longer leased, for whatever reason."""
        known = self._turns.get(turn)
        if known is None:
            return
        if known[1] > messages:
            self._turns[turn] = (known[0], known[1] - messages)
        else:
            del self._turns[turn]

    def first(self, since: int = 0) -> object | None:
        """The lease table of the earliest delivered message that is still leased, among the turns from ``since`` on; None
        without one."""
        return next((table for turn, (table, _) in self._turns.items() if turn >= since), None)

    def end_turn(self) -> int:
        """End the present turn, so that later deliveries get a new one. Returns: the number of the next turn."""
        self._newest = None
        return self._turn + 1
