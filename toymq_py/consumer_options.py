"""Options of a consumer in client commands: its start position, and the mode in which sessions share it. Contract: protocol.md,
"SUB"."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from toymq_py.errors import BadArgument
from toymq_py.records import UNIX_MS_MAX
from toymq_py.units import parse_number

Mode = Literal["exclusive", "shared", "keyed", "single"]
"""How sessions share one consumer: one at a time, many that compete, many that compete and keep the order of each key, or many
of which one is active in each topic."""
MODES: tuple[Mode, ...] = ("exclusive", "shared", "keyed", "single")
POLL_MODES: tuple[Mode, ...] = ("shared", "keyed")
"""The modes of a PULL, which takes over from no session."""
LEASE_NUMBER_MAX = 2**53 - 1
"""The largest lease number: JSON numbers are exact up to this."""
OLDEST_MS = 978_307_200_000
"""The earliest time that is accepted: 2001-01-01. A smaller one was most likely meant in seconds, and would be in January
1970."""


def parse_mode(value: object, modes: tuple[Mode, ...] = MODES) -> Mode:
    """Parse the mode of a subscription. Raises: BadArgument."""
    for mode in modes:
        if mode == value:
            return mode
    of_others = "; it is one of `sub`, SUB and `toymqctl sub` alone" if value in MODES else ""
    raise BadArgument(f"invalid mode {str(value)[:50]!a}: write {', '.join(modes[:-1])} or {modes[-1]}{of_others}")


@dataclass(frozen=True, slots=True)
class Start:
    """Where a consumer begins, or is moved to: ``earliest | latest | <msg-id> | @<unix-ms>``.

    ``value``: the id for kind "id", milliseconds since the epoch for "time", otherwise 0 without meaning.
    """

    kind: Literal["earliest", "latest", "id", "time"]
    value: int = 0

    @classmethod
    def parse(cls, text: str) -> "Start":
        """Parse a start position. Raises: BadArgument."""
        if text == "earliest":
            return EARLIEST
        if text == "latest":
            return LATEST
        with suppress(BadArgument):
            if text.startswith("@"):
                return cls("time", parse_number("time", text[1:], 0, UNIX_MS_MAX))
            return cls("id", parse_number("message id", text))
        raise BadArgument(f"invalid position {text[:50]!a}: write earliest, latest, a message id or @<unix-ms>")

    @classmethod
    def parse_checked(cls, text: str) -> "Start":
        """Parse a start position given by people or over HTTP. Refuses a time that was most likely meant in seconds, since a
        consumer that starts in 1970 gets all messages. Raises: BadArgument."""
        position = cls.parse(text)
        if position.kind == "time" and position.value < OLDEST_MS:
            raise BadArgument(f"{position} is before 2001: write milliseconds, {position}000, or earliest")
        return position

    def __str__(self) -> str:
        return {"id": str(self.value), "time": f"@{self.value}"}.get(self.kind, self.kind)


EARLIEST = Start("earliest")
LATEST = Start("latest")
