"""What each command needs, where the broker has an auth file: nothing is done before HELLO with a token, nor beyond its rights.

Contract: clients.md (the auth file); protocol.md, "Errors"; ADR 0021. A handler of its own kind, so that a broker without an
auth file pays nothing for it.
"""

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

from toymq_py.auth import Authority, Grant
from toymq_py.broker import Broker
from toymq_py.errors import AuthFailed, AuthRequired, Forbidden
from toymq_py.protocol import (
    Ack,
    Command,
    Config,
    Create,
    Delete,
    Describe,
    Fetch,
    Forget,
    Hello,
    Nack,
    Offsets,
    Pause,
    Ping,
    Publish,
    Pull,
    Purge,
    Quit,
    Redrive,
    Rejected,
    Resume,
    Seek,
    Stats,
    Subscribe,
    Topics,
    Touch,
    Unsubscribe,
)
from toymq_py.quotas import Seat
from toymq_py.session.deliveries import Deliveries
from toymq_py.session.handler import PROTOCOL_VERSION, Handler
from toymq_py.session.replies import Replies

logger = logging.getLogger("toymq_py.session")

GREETING_S = 10.0
"""How long a connection may take until its token is accepted: a round trip, and a handshake of TLS before it has as long."""


class GuardedHandler(Handler):
    """The commands of one session, as far as its token allows."""

    __slots__ = ("_authority", "_grant", "_peer", "_seat", "admitted")

    def __init__(
        self, number: int, broker: Broker, replies: Replies, deliveries: Deliveries, loop: asyncio.AbstractEventLoop,
        authority: Authority, peer: str, seat: Seat | None = None,
    ) -> None:  # fmt: skip
        """``peer`` is the other end's address, for the log."""
        super().__init__(number, broker, replies, deliveries, loop)
        self.admitted = False
        """Its token was accepted."""
        self._authority = authority
        self._grant: Grant | None = None
        self._peer = peer
        self._seat = seat

    def too_late(self) -> None:
        """The time for HELLO is over: say so. The session is to end."""
        self._error(AuthRequired(f"no HELLO with a token within {GREETING_S:g} s"))

    def rights_changed(self) -> bool:
        """There is another table of tokens.

        Returns: whether the session is to end: its token has gone, which is said, or allows less to be read than before. Its
        client then connects again, and hears what it may no longer do.
        """
        before = self._grant
        if before is None:
            return False
        self._grant = self._authority.present(before)
        if self._grant is None:
            logger.warning("session %d (%s): the token of %s is gone", self._number, self._peer, before.name)
            self._error(AuthFailed("this token is no longer in the auth file"))
            return True
        if not self._grant.allows_all_of(before):
            logger.warning("session %d (%s): the token of %s may read less now", self._number, self._peer, before.name)
            return True
        return False

    def _apply(self, command: Command) -> None:
        if self._grant is None:
            self._authenticate(command)
        else:
            _check(self._grant, command)
        super()._apply(command)

    def _authenticate(self, command: Command) -> None:
        """Raises: AuthRequired, AuthFailed, TooManyConnections; a version that is not spoken here is said behind us."""
        if self.admitted or not isinstance(command, Hello) or command.auth is None:
            raise AuthRequired("the first line is HELLO 1 auth=<token>, and nothing is done before it")
        if command.version != PROTOCOL_VERSION:
            return
        grant = self._authority.find(command.auth)
        if grant is None:
            logger.warning("session from %s: a token that is not in the auth file", self._peer)
            raise AuthFailed("this token is not in the auth file")
        if self._seat is not None:
            self._seat.identify(grant.name, admin=grant.admin)
        self._grant = grant
        self.admitted = True

    def _described(self, pattern: str | None) -> Iterator[dict[str, Any]]:
        return self._broker.describe(pattern, self._sees)

    def _sees(self, topic: str) -> bool:
        return self._grant is not None and self._grant.sees(topic)


def _check(grant: Grant, command: Command) -> None:
    """Names alone decide: whether a topic is there is nothing that a token finds out. Raises: Forbidden."""
    match command:
        case Publish():
            if not grant.may_publish(command.topic):
                raise Forbidden(f"the token of {grant.name} may not publish to {command.topic}")
        case Subscribe() | Pull() | Ack() | Nack() | Touch() | Fetch() | Offsets():
            if not grant.may_subscribe(command.topic):
                raise Forbidden(f"the token of {grant.name} may not subscribe to {command.topic}")
        case Describe():
            if not grant.sees(command.topic):
                raise Forbidden(f"the token of {grant.name} may not see {command.topic}")
        case Create() | Config() | Delete() | Purge() | Seek() | Forget() | Redrive():
            if not grant.admin:
                raise Forbidden(f"the token of {grant.name} is no admin's: it may not administer {command.topic}")
        case Hello() | Unsubscribe() | Pause() | Resume() | Topics() | Stats() | Ping() | Quit() | Rejected():
            pass
