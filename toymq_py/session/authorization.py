"""Authorization of commands: HELLO with a token comes first, and each command needs a right.

Contract: clients.md (the auth file); protocol.md, "Errors"; ADR 0021. A subclass of the handler, so that a broker without an
auth file does not pay for it.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any, assert_never

from toymq_py.auth.holder import acting_token
from toymq_py.auth.quotas import Seat
from toymq_py.auth.tokens import Authority, Grant
from toymq_py.broker import Broker
from toymq_py.errors import AuthFailed, AuthRequired, Forbidden
from toymq_py.protocol import Command, Publish, SettlementRun, commands
from toymq_py.protocol.frames import PROTOCOL_VERSION
from toymq_py.session.deliveries import Deliveries
from toymq_py.session.gate import ADMINISTRATIVE
from toymq_py.session.handler import Handler
from toymq_py.session.replies import Replies

logger = logging.getLogger("toymq_py.session")

GREETING_S = 10.0
"""The time for a connection to send an accepted token; a TLS handshake before it has the same."""
CONSUMING = (
    commands.Ack, commands.Nack, commands.Touch, SettlementRun, commands.Pull, commands.Subscribe, commands.Fetch,
    commands.Offsets,
)  # fmt: skip
"""Commands that need the right to subscribe to their topic."""
UNRESTRICTED = (
    commands.Hello, commands.Unsubscribe, commands.Held, commands.Pause, commands.Resume, commands.Topics, commands.Stats,
    commands.Cluster, commands.Ping, commands.Quit, commands.Rejected,
)  # fmt: skip
"""Commands that any accepted token may send; they show and touch only what it has rights to."""
MAKERS = (Publish, commands.Subscribe, commands.Pull, commands.Create, commands.Seek)
"""Commands that may create a topic or a consumer, which counts towards the token's limit."""


class GuardedHandler(Handler):
    """Applies the commands that the session's token allows."""

    __slots__ = ("_authority", "_forbade", "_grant", "_on_admitted", "_peer", "_seat", "admitted")

    def __init__(
        self, number: int, broker: Broker, replies: Replies, deliveries: Deliveries, loop: asyncio.AbstractEventLoop,
        address: str | None, authority: Authority, peer: str, seat: Seat | None = None,
        on_admitted: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """``peer`` is the client's address for the log; ``on_admitted`` is called when a token is accepted."""
        super().__init__(number, broker, replies, deliveries, loop, address)
        self.admitted = False
        """Whether a token was accepted."""
        self._authority = authority
        self._forbade = False
        """Whether a publish with a sequence was refused for want of the right; which one is not remembered."""
        self._grant: Grant | None = None
        self._peer = peer
        self._seat = seat
        self._on_admitted = on_admitted

    def too_late(self) -> None:
        """Reply that HELLO is overdue; the caller ends the session."""
        self._refuse(commands.Hello(PROTOCOL_VERSION), AuthRequired(f"no HELLO with a token within {GREETING_S:g} s"))

    def rights_changed(self) -> bool:
        """Check the session's token against a new table of tokens.

        Returns: whether the session has to end: its token is gone, which the client is told, or may read less than before. The
        client then connects again, and hears what it may no longer do. A producer that was forbidden to publish connects
        again, too, when its token may publish more: the publishes that it has sent behind the refused one must not be stored.
        """
        before = self._grant
        if before is None:
            return False
        try:
            self._grant = self._authority.renew(before)
        except AuthFailed as error:
            logger.warning("session %d (%s), token %s: %s", self._number, self._peer, before.name, error)
            self._refuse(commands.Hello(PROTOCOL_VERSION), error.with_traceback(None))
            self._grant = None
            self._trail.token = None
            return True
        self._trail.token = self._grant.name
        if not self._grant.allows_all_of(before):
            logger.warning("session %d (%s): the token of %s may read less now", self._number, self._peer, before.name)
            return True
        if self._forbade and not all(map(before.may_publish, self._grant.publish.texts)):
            text = "session %d (%s): the token of %s may publish more now, and was refused publishes: its client connects again"
            logger.info(text, self._number, self._peer, before.name)
            return True
        return False

    def _remembers(self, topic: str) -> bool:
        """Whether the token may publish to the topic. One without the right must not fill memory; the session ends when the
        right is granted."""
        may = self._grant is not None and self._grant.may_publish(topic)
        self._forbade = self._forbade or not may
        return may

    def _apply(self, command: Command) -> None:
        grant = self._grant
        if grant is None:
            self._authenticate(command)
        else:
            if grant.expires_ns is not None:
                self._authority.check_time(grant)
            _check(grant, command)
            if self._seat is not None and isinstance(command, MAKERS):
                whose = acting_token.set(self._seat.token)
                try:
                    super()._apply(command)
                finally:
                    acting_token.reset(whose)
                return
        super()._apply(command)

    def _authenticate(self, command: Command) -> None:
        """Check the token of HELLO. The handler refuses a bad version, and a client that speaks another protocol.

        Raises: AuthRequired, AuthFailed, TooManyConnections.
        """
        if isinstance(command, commands.Rejected) and command.other_protocol:
            return
        if self.admitted or not isinstance(command, commands.Hello) or command.auth is None:
            raise AuthRequired("this broker needs a token: connect to toymq://TOKEN@host, or send HELLO 1 auth=TOKEN first")
        if command.version != PROTOCOL_VERSION:
            return
        grant = self._authority.admit(command.auth)
        if self._seat is not None:
            self._seat.identify(grant.name, admin=grant.admin)
        self._grant = grant
        self._trail.token = grant.name
        self.admitted = True
        self._on_admitted()

    def _numbers(self) -> dict[str, Any]:
        """The figures for STATS, with the tokens that expire: all of them for an admin, otherwise only the client's own."""
        mine = self._grant
        shown = [grant for grant in self._authority.expiring() if mine is not None and (mine.admin or grant.name == mine.name)]
        tokens = [{"name": grant.name, "expires_ms": (grant.expires_ns or 0) // 1_000_000} for grant in shown]
        return super()._numbers() | ({"tokens": tokens} if tokens else {})

    def _described(self, pattern: str | None) -> Iterator[dict[str, Any]]:
        return self._broker.describe(pattern, self._sees)

    def _sees(self, topic: str) -> bool:
        return self._grant is not None and self._grant.sees(topic)


def _check(grant: Grant, command: Command) -> None:
    """Check the right for a command by names alone, so that a token cannot find out which topics exist. Raises: Forbidden."""
    if isinstance(command, Publish):
        if not grant.may_publish(command.topic):
            raise Forbidden(f"the token of {grant.name} may not publish to {command.topic}; use one that may")
    elif isinstance(command, CONSUMING):
        if not grant.may_subscribe(command.topic):
            raise Forbidden(f"the token of {grant.name} may not subscribe to {command.topic}; use one that may")
    elif isinstance(command, commands.Describe):
        if not grant.sees(command.topic):
            raise Forbidden(f"the token of {grant.name} may not see {command.topic}; use one that may")
    elif isinstance(command, ADMINISTRATIVE):
        if not grant.admin:
            raise Forbidden(f"the token of {grant.name} may not administer {command.topic}; use an admin's")
    elif not isinstance(command, UNRESTRICTED):
        assert_never(command)
