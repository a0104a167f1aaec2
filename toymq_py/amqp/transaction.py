"""An AMQP transaction: the publishes and acks that a channel holds until tx.commit, bounded. Pure. Contract: amqp.md, "Model"
(tx)."""

from collections.abc import Callable

from toymq_py.amqp.errors import PRECONDITION_FAILED, AmqpError
from toymq_py.amqp.publishing import Held

CALLS_MAX = 10_000
BYTES_MAX = 16 << 20
CALL_BYTES = 512
"""The memory of a call beside its bytes, about. It counts as held."""


class Transaction:
    """Publishes and acks that wait for their commit."""

    def __init__(self, held: Held) -> None:
        self._held = held
        self._bytes = 0  # of publishes
        self.failed: AmqpError | None = None
        """The error because of which one of its publishes was not stored."""
        self._calls: list[Callable[[], None]] = []

    def add(self, call: Callable[[], None], size: int) -> None:
        """Add a call for the commit. ``size``: bytes that it holds until then. Raises: AmqpError (PRECONDITION_FAILED)."""
        if len(self._calls) >= CALLS_MAX:
            raise AmqpError(PRECONDITION_FAILED, f"a transaction has {CALLS_MAX} publishes and acks at most: commit before")
        if self._bytes + size > BYTES_MAX:
            raise AmqpError(PRECONDITION_FAILED, f"a transaction holds {BYTES_MAX} bytes at most: commit before")
        self._bytes += size
        self._held.in_transactions += size + CALL_BYTES
        self._calls.append(call)

    def begin_commit(self) -> None:
        """Make all calls of the transaction."""
        calls, self.failed = self._take(), None
        for call in calls:
            call()

    def end_commit(self) -> None:
        """End the commit. Raises: AmqpError (PRECONDITION_FAILED) when part of the transaction was not stored."""
        failed, self.failed = self.failed, None
        if failed is not None:
            raise AmqpError(PRECONDITION_FAILED, f"not all of the transaction is stored: {failed.text}", (90, 20))

    def roll_back(self) -> None:
        """Forget all calls of the transaction."""
        self._take()

    def _take(self) -> list[Callable[[], None]]:
        calls, self._calls = self._calls, []
        self._held.in_transactions -= self._bytes + len(calls) * CALL_BYTES
        self._bytes = 0
        return calls
