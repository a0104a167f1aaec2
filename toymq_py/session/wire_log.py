"""Debug log of one session's frames, with a mark for each direction: ``<`` in, ``>`` out, ``=`` state, ``%`` timer, ``x``
close, ``!`` error. Logger ``toymq_py.wire`` (``--log-level wire=debug``).

Off, it costs one comparison for each chunk.
"""

import logging

from toymq_py.errors import ProtocolViolation
from toymq_py.protocol import ClientConnection, Command, command_lines, reply_line

logger = logging.getLogger("toymq_py.wire")


class WireLog:
    """Logs the frames of one session; may start between any two chunks."""

    __slots__ = ("_number", "_replies")

    def __init__(self, number: int) -> None:
        self._number = number
        self._replies = ClientConnection()

    @staticmethod
    def of(number: int) -> "WireLog | None":
        """A log for the session of that number; None unless the logger ``toymq_py.wire`` is at debug."""
        return WireLog(number) if logger.isEnabledFor(logging.DEBUG) else None

    def say(self, mark: str, text: str) -> None:
        logger.debug("%d %s %s", self._number, mark, text, extra={"session": self._number})

    def received(self, commands: list[Command]) -> None:
        for command in commands:
            for line in command_lines(command):
                self.say("<", line)

    def written(self, data: bytes) -> None:
        """Log whole frames that were written."""
        self._replies.receive_data(data)
        try:
            for reply in self._replies.next_replies():
                self.say(">", reply_line(reply))
        except ProtocolViolation as error:
            self.say("!", f"{len(data)} bytes that are not frames: {error}")
            self._replies = ClientConnection()
