"""In which order a lessee of several topics got the messages that it has not settled. ADR 0256.

Of what comes back without an answer one message counts an attempt: the one that the application most likely had. Within a topic
that is the lowest id (ADR 0053). Of several topics it is in the one of the message whose first delivery, to any worker, was the
earliest: what kills its workers outlives the messages that it is delivered with.
"""


class DeliveryOrder:
    """Of one lessee. A turn is a stretch of deliveries of one kind from one table, with no other between them; turns ascend.

    ``_fresh`` has the turns of first deliveries, oldest first: whose they are, and how many are not settled. ``_again`` is the
    same of others, with the time of the first delivery.
    """

    __slots__ = ("_again", "_fresh", "_newest", "_turn")

    def __init__(self) -> None:
        self._turn = 0
        self._newest: tuple[object, float | None] | None = None
        self._fresh: dict[int, tuple[object, int]] = {}
        self._again: dict[int, tuple[object, int, float]] = {}

    def delivered(self, table: object, messages: int, first_s: float | None = None) -> int:
        """Note a delivery. ``first_s``: when these messages were delivered first, on the monotonic clock; 0: that is not known,
        None: now. Returns: its turn, for ``settled``."""
        newest = self._newest
        if newest is None or newest[0] is not table or newest[1] != first_s:
            self._turn += 1
            self._newest = (table, first_s)
        turn = self._turn
        if first_s is None:
            known = self._fresh.get(turn)
            self._fresh[turn] = (table, messages if known is None else known[1] + messages)
        else:
            before = self._again.get(turn)
            self._again[turn] = (table, messages if before is None else before[1] + messages, first_s)
        return turn

    def settled(self, turn: int, messages: int) -> None:
        """Note that messages of a turn have left their lessee, for whatever reason."""
        known = self._fresh.get(turn)
        if known is not None:
            if known[1] > messages:
                self._fresh[turn] = (known[0], known[1] - messages)
            else:
                del self._fresh[turn]
        elif (before := self._again.get(turn)) is not None:
            if before[1] > messages:
                self._again[turn] = (before[0], before[1] - messages, before[2])
            else:
                del self._again[turn]

    def first(self, since: int = 0) -> tuple[object, float | None] | None:
        """Of the turns from ``since`` on, the table of the message that was delivered first, and when; None where that was to
        this lessee."""
        again = [(table, first_s) for turn, (table, _, first_s) in self._again.items() if turn >= since]
        if again:
            return min(again, key=lambda one: one[1])
        return next(((table, None) for turn, (table, _) in self._fresh.items() if turn >= since), None)

    def timed_out(self) -> int:
        """A time-out has counted: what is delivered from now on is not behind that message. Returns: its first turn."""
        self._newest = None
        return self._turn + 1
