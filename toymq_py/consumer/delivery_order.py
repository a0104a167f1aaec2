"""In which order a lessee of several topics got the messages that it has not settled. ADR 0256.

Of what comes back without an answer one message counts an attempt: the one that the application most likely had. Within a topic
that is the lowest id (ADR 0053); of several topics, it is in the one whose message was delivered first.
"""


class DeliveryOrder:
    """Of one lessee. A turn is a stretch of deliveries from one table with none from another between them; turns ascend.

    ``_open`` has the turns with messages that are not settled, oldest first: whose they are, and how many. ``_behind`` is the
    same of what was delivered before a time-out that counted, while the lessee has settled nothing since: it hangs on the
    message that was counted, and what stood behind that counts no attempt of its own.
    """

    __slots__ = ("_behind", "_newest", "_open", "_turn")

    def __init__(self) -> None:
        self._turn = 0
        self._newest: object | None = None
        self._open: dict[int, tuple[object, int]] = {}
        self._behind: dict[int, tuple[object, int]] = {}

    def delivered(self, table: object, messages: int) -> int:
        """Note a delivery. Returns: its turn, which ``settled`` wants back."""
        if table is not self._newest:
            self._turn += 1
            self._newest = table
        turn = self._turn
        known = self._open.get(turn)
        self._open[turn] = (table, messages if known is None else known[1] + messages)
        return turn

    def settled(self, turn: int, messages: int) -> None:
        """Note that messages of a turn have left their lessee, for whatever reason."""
        turns = self._open if turn in self._open else self._behind
        known = turns.get(turn)
        if known is not None:
            if known[1] > messages:
                turns[turn] = (known[0], known[1] - messages)
            else:
                del turns[turn]

    def first(self, *, late: bool) -> object | None:
        """The table of the message that was delivered first. ``late``: nothing was settled since the last time-out."""
        turns = self._open if late or not self._behind else self._behind
        return next(iter(turns.values()))[0] if turns else None

    def timed_out(self) -> int:
        """A time-out has counted: what is delivered from now on is not behind that message. Returns: the next turn."""
        self._behind.update(self._open)
        self._open = {}
        self._newest = None
        return self._turn + 1
