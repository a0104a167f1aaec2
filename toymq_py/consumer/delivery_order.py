"""In which order a lessee of several topics got the messages that it has not settled. ADR 0256, 0265, 0267.

Of what comes back without an answer one message counts an attempt: the one that the application most likely had, which is the
one that this lessee got before the others.

An application that hangs for several leases loses what it hangs on with the first of them, and gets others in its place, which
time out in its buffer while it still hangs. So lots of these are excused: four, then eight and so on, as one that never settles
anything must come to an end. Belongs to the event loop.
"""

from typing import Final

EXCUSES_MIN: Final = 4
EXCUSES_MAX: Final = 64
"""Of time-outs in a row that would count, behind one that did."""


class DeliveryOrder:
    """Of one lessee. A turn is a stretch of deliveries from one table with ascending ids; turns ascend."""

    __slots__ = ("_excused", "_excuses", "_hangs_in", "_hangs_on", "_highest", "_newest", "_turn", "_turns")

    def __init__(self) -> None:
        self._excuses = self._excused = 0
        self._hangs_in: object = None
        self._hangs_on = 0
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

    @property
    def next_turn(self) -> int:
        return self._turn + 1

    def hangs(self) -> None:
        """The first lease of a lessee that worked has ended."""
        self._excuses = self._excused = 0

    def timed_out(self, table: object, msg_id: int) -> bool:
        """A time-out of this message would count, and what is delivered from now on is not behind it. Returns: whether it
        counts."""
        self._newest = None
        if self._excused < self._excuses and not (self._hangs_in is table and self._hangs_on == msg_id):
            self._excused += 1
            return False
        self._excuses = min(2 * self._excuses, EXCUSES_MAX) or EXCUSES_MIN
        self._excused = 0
        self._hangs_in, self._hangs_on = table, msg_id
        return True
