"""What an AMQP channel holds until tx.commit: its publishes and acks, bounded. Pure. Contract: amqp.md, "Model" (tx)."""

from collections.abc import Callable

from toymq_py.amqp.errors import PRECONDITION_FAILED, AmqpError

CALLS_MAX = 10_000
BYTES_MAX = 16 << 20


class Transaction:
    """Publishes and acks that wait for their commit."""

    def __init__(self) -> None:
        self.held_bytes = 0
        """Of publishes."""
        self.failed: AmqpError | None = None
        """Why one of its publishes was not stored."""
        self._calls: list[Callable[[], None]] = []

    def add(self, call: Callable[[], None], size: int) -> None:
        """Do it at the commit. ``size``: bytes that it holds until then. Raises: AmqpError (PRECONDITION_FAILED)."""
        if len(self._calls) >= CALLS_MAX:
            raise AmqpError(PRECONDITION_FAILED, f"a transaction has {CALLS_MAX} publishes and acks at most: commit before")
        if self.held_bytes + size > BYTES_MAX:
            raise AmqpError(PRECONDITION_FAILED, f"a transaction holds {BYTES_MAX} bytes at most: commit before")
        self.held_bytes += size
        self._calls.append(call)

    def begin_commit(self) -> None:
        """Do all of it."""
        calls, self._calls, self.held_bytes, self.failed = self._calls, [], 0, None
        for call in calls:
            call()

    def end_commit(self) -> None:
        """Everything is stored, or refused. Raises: AmqpError (PRECONDITION_FAILED)."""
        failed, self.failed = self.failed, None
        if failed is not None:
            raise AmqpError(PRECONDITION_FAILED, f"not all of the transaction is stored: {failed.text}", (90, 20))

    def roll_back(self) -> None:
        """Forget all of it."""
        self._calls.clear()
        self.held_bytes = 0
