"""Debug log of one connection's frames, with a mark for each direction: ``<`` in, ``>`` out, ``=`` state, ``%`` timer, ``x``
close, ``!`` error. Logger ``toymq.wire_log``. A body is shown by its length, and a token is masked.

For a connection that begins while the logger is off, each chunk of bytes costs one test of a variable.
"""

import logging
from collections.abc import Iterable
from itertools import count

from toymq_py.protocol import Reply, ServerConnection, command_lines, reply_line

logger = logging.getLogger("toymq.wire_log")
_numbers = count(1)
_COMMANDS_MAX = 512
_BODY_BYTES_MAX = 1 << 40
"""Most bytes of a body; in effect no limit: the broker judges what we send."""


def log_wait(delay_s: float) -> None:
    """Log how long the client waits before the next attempt to connect."""
    logger.debug("- %% connecting again in %.3f s", delay_s)


class Wire:
    """Logs the frames of one connection, which has a number of its own in this process."""

    def __init__(self) -> None:
        self._number = next(_numbers)
        self._commands = ServerConnection(_BODY_BYTES_MAX)

    @staticmethod
    def made() -> "Wire | None":
        """Make the log of a new connection; None unless the logger's level is DEBUG."""
        return Wire() if logger.isEnabledFor(logging.DEBUG) else None

    def note(self, mark: str, text: str) -> None:
        logger.debug("%d %s %s", self._number, mark, text, extra={"session": self._number})

    def sent(self, data: bytes) -> None:
        """Log sent frames; ``data`` contains only whole frames."""
        self._commands.receive_data(data)
        while commands := self._commands.next_commands(_COMMANDS_MAX):
            for command in commands:
                for line in command_lines(command):
                    self.note(">", line)

    def received(self, replies: Iterable[Reply]) -> None:
        for reply in replies:
            self.note("<", reply_line(reply))
