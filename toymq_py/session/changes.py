"""Commands of a session that change the disk: each is answered when its change is on stable storage. Contract: protocol.md,
"Commands"."""

from collections.abc import Callable

from toymq_py.auth import audit
from toymq_py.broker import Done
from toymq_py.disk_errors import storage_error
from toymq_py.errors import RequestError
from toymq_py.partition_operations import Counted
from toymq_py.protocol import Command, encode_ok
from toymq_py.session.gate import Gate
from toymq_py.session.replies import MADE_COST_BYTES, PendingReply, Replies
from toymq_py.session.trail import Trail

OK_BYTES = 5
"""Bytes of the reply to one command of a ``SettlementRun``."""


class Changes:
    """The changes of one session that wait for stable storage. Changes that need an admin's right count at the session's
    ``Gate``, and get a line in the audit trail."""

    __slots__ = ("_gate", "_replies", "_trail")

    def __init__(self, replies: Replies, gate: Gate, trail: Trail) -> None:
        self._replies = replies
        self._gate = gate
        self._trail = trail

    def stored(
        self, begin: Callable[[Done], None], *, count: int = 0, answer: Callable[[], bytes] | None = None,
        audited: Command | None = None, replies: int = 1,
    ) -> None:  # fmt: skip
        """Begin a change, and reply when it is on stable storage: with ``answer``, or ``OK <count>``. Then ``audited``, if
        given, is written to the audit trail. ``replies``: to how many commands ``answer`` replies; a failure is the reply to
        each.

        Raises: RequestError when ``begin`` does; then no reply is queued.
        """
        held = PendingReply(MADE_COST_BYTES + OK_BYTES * replies)
        change = self._gate.change if audited is not None else lambda begun: None  # acks share flushes: any number is cheap

        def done(error: OSError | RequestError | None) -> None:
            change(-1)
            if isinstance(error, OSError):
                error = storage_error(error)
            if audited is not None:
                self._trail.record(audited, audit.OK if error is None else error.code)
            if error is not None:
                self._replies.fail(held, error, replies)
            else:
                self._replies.fill(held, answer or (lambda: encode_ok(count)))

        change(1)
        try:
            begin(done)
        except BaseException:
            change(-1)
            raise
        self._replies.hold(held)

    def counted(self, begin: Callable[[Counted], None], audited: Command) -> None:
        """As ``stored``; the reply is the number that ``begin`` reports."""
        total = 0

        def start(done: Done) -> None:
            def finished(count: int, error: OSError | RequestError | None) -> None:
                nonlocal total
                total = count
                done(error)

            begin(finished)

        self.stored(start, answer=lambda: encode_ok(total), audited=audited)
