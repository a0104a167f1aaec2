"""In which order a lessee of several topics got the messages that it has not settled. ADR 0256, 0265.

Of what comes back without an answer one message counts an attempt: the one that the application most likely had. Within a topic
that is the lowest id (ADR 0053). Of several topics it is in the one of the message that this lessee got before the others.
"""


class DeliveryOrder:
    """Of one lessee. A turn is a stretch of deliveries from one table, with none of another between them; turns ascend."""

    __slots__ = ("_newest", "_turn", "_turns")

    def __init__(self) -> None:
        self._turn = 0
        self._newest: object = None
        self._turns: dict[int, tuple[object, int]] = {}  # those with messages, oldest first: whose they are, and how many

    def delivered(self, table: object, messages: int) -> int:
        """Note a delivery. Returns: its turn, for ``settled``."""
        if self._newest is not table:
            self._turn += 1
            self._newest = table
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

    def timed_out(self) -> int:
        """A time-out has counted: what is delivered from now on is not behind that message. Returns: its first turn."""
        self._newest = None
        return self._turn + 1
