"""The lines that a session writes into the audit trail. Contract: docs/security.md, "The audit trail"; ADR 0059."""

from toymq_py.auth import audit
from toymq_py.broker import Broker
from toymq_py.protocol import Command, SettlementRun
from toymq_py.session.gate import ADMINISTRATIVE
from toymq_py.session.passed_on import code_of
from toymq_py.session.replies import Replies


class Trail:
    """The audit trail of one session, with the client's token and address."""

    __slots__ = ("_address", "_broker", "_replies", "token")

    def __init__(self, broker: Broker, replies: Replies, address: str | None) -> None:
        self._broker = broker
        self._replies = replies
        self._address = address
        self.token: str | None = None
        """Name of the client's token; None where the broker has no tokens."""

    def record(self, command: Command, result: str, refused_token: str | None = None) -> None:
        """Record how a command ended: ``OK``, or the code of the error."""
        about = {name: value for name in ("topic", "consumer") if isinstance(value := getattr(command, name, None), str)}
        self._record(verb(command).lower(), result, self.token or refused_token, about)

    def made(self, topic: str) -> None:
        """Record that a command created a topic implicitly; only with tokens, which tell whose topic it is."""
        if self.token is not None:
            self._record("create", audit.OK, self.token, {"topic": topic})

    def passed_on(self, command: Command) -> None:
        """Record a command that was passed on to another worker, when its reply, the last one queued, is known. The worker that
        applies it records it, too, without an address: the client, or this worker, may be gone by then."""
        if isinstance(command, ADMINISTRATIVE):
            self._replies.when_told(lambda reply: self.record(command, code_of(reply) or audit.OK))

    def _record(self, action: str, result: str, token: str | None, about: dict[str, str]) -> None:
        passed = self._address is None and self._broker.placement.is_divided
        audit.record(action, result, token=token, address=self._address, via="passed" if passed else "tcp", about=about)


def verb(command: Command) -> str:
    """The verb of a command; of a run, that of all its commands."""
    return type(command.command if isinstance(command, SettlementRun) else command).__name__.upper()
