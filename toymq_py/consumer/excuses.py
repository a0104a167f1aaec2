"""Excuses: the lease time-outs of a hanging session that count no attempt. ADR 0265, 0272.

An application that hangs for several visibility timeouts loses the message that it hangs on with the first of them. It gets
other messages, whose leases time out in its buffer while it still hangs. So these are excused: four time-outs after one that
counts, then eight after the next, and so on. The number is limited, so that messages become dead letters in the end if an
application never settles anything. Pure.
"""

from typing import Final

EXCUSES_MIN: Final = 4
EXCUSES_MAX: Final = 64
"""Most time-outs that are excused in a row after one that counted."""


class Excuses:
    """The excuses of one lessee: from its first lease time-out until it settles a message, when they begin anew."""

    __slots__ = ("_excused", "_excuses", "_hangs_in", "_hangs_on")

    def __init__(self) -> None:
        self._excuses = self._excused = 0
        self._hangs_in: object = None
        self._hangs_on = 0

    def counts(self, table: object, msg_id: int) -> bool:
        """Decide whether a message's lease time-out counts an attempt or is excused. Returns: whether it counts; from then on
        the application is taken to hang on this message."""
        if self._excused < self._excuses and not (self._hangs_in is table and self._hangs_on == msg_id):
            self._excused += 1
            return False
        self._excuses = min(2 * self._excuses, EXCUSES_MAX) or EXCUSES_MIN
        self._excused = 0
        self._hangs_in, self._hangs_on = table, msg_id
        return True
