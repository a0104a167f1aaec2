"""The gate before a session's commands: which have to wait, which a broker that shuts down still takes, which are an admin's.

Contract: delivery.md, "Shutdown"; protocol.md, "Framing"; ADR 0102. Belongs to the loop.
"""

from collections.abc import Callable

from toymq_py.protocol import Ack, SettlementRun, commands
from toymq_py.session.replies import PendingReply

CHANGES_MAX = 16
"""Most changes of one connection that wait for the disk (CREATE, CONFIG, DELETE, PURGE, SEEK, FORGET, REDRIVE): as many as
there are sync threads. Each holds work of the broker, not only a reply, and a shutdown waits for changes that were begun."""
PULLS_MAX = 128
"""Most PULLs of one connection that are not answered. Each is attached to its topics, and woken for messages, behind the one at
the head; the replies are in order, so more of them do not come sooner."""
ADMINISTRATIVE = (
    commands.Create, commands.Config, commands.Delete, commands.Purge, commands.Seek, commands.Forget, commands.Redrive,
)  # fmt: skip
"""Commands that only an admin's token may send. Every one has a line in the audit trail."""
TAKEN_AT_SHUTDOWN = (
    Ack, SettlementRun, commands.Nack, commands.Touch, commands.Unsubscribe, commands.Held, commands.Pause, commands.Resume,
    commands.Hello, commands.Ping, commands.Quit, commands.Rejected,
)  # fmt: skip
"""Commands that settle delivered messages, and those that begin nothing."""


class Gate:
    """Counts what a session's commands have begun. While it is ``closed``, at a limit, no command is applied. Nothing reports
    the opening: what ends then queues a reply, which wakes the session."""

    __slots__ = ("_changes", "_names", "_pulls", "closed")

    def __init__(self) -> None:
        self.closed = False
        self._changes = 0
        self._names = 0
        self._pulls = 0

    def _settle(self) -> None:
        self.closed = self._changes >= CHANGES_MAX or self._pulls >= PULLS_MAX or self._names > 0

    def change(self, begun: int) -> None:
        """Count a change that begins (1) or has ended (-1)."""
        self._changes += begun
        self._settle()

    def pull(self, begun: int) -> None:
        """Count a PULL that begins (1) or has ended (-1)."""
        self._pulls += begun
        self._settle()

    def wait(self, begin: Callable[[Callable[[], None]], object], opened: Callable[[], None]) -> None:
        """Call ``begin``, and stay closed until the function that it gets is called; then call ``opened``."""
        self._names += 1
        self._settle()

        def over() -> None:
            self._names -= 1
            self._settle()
            opened()

        begin(over)

    def wait_for(self, held: PendingReply, opened: Callable[[], None]) -> None:
        """Stay closed until the reply ``held`` is written, then call ``opened``."""

        def begin(over: Callable[[], None]) -> None:
            held.released = lambda at: over()

        self.wait(begin, opened)
