"""The common base of both clients' messages: a delivery with its lease. Ack and nack go over the connection of its
subscription."""

from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, TypeVar

from toymq import arguments, requests
from toymq.arguments import Seconds
from toymq.conversation import Conversation
from toymq.delivery_window import Feed
from toymq.message import Delivery
from toymq.nack_reason import DeadOn, Reason, describe, is_dead
from toymq.options import Options
from toymq_py.errors import ConnectionLost, Moved
from toymq_py.protocol import MessagePush


class Connection(Protocol):
    """The part of a connection, of either client, that a message needs."""

    @property
    def conversation(self) -> Conversation: ...
    @property
    def options(self) -> Options: ...


C = TypeVar("C", bound=Connection)
_NO_SPAN = nullcontext()


class LeasedMessage(Delivery, Generic[C]):
    """A delivery that is leased to a consumer."""

    __slots__ = ("_came_over", "_feed", "_given_back", "_turn")

    def __init__(self, push: MessagePush, feed: Feed, link: C) -> None:
        super().__init__(push)
        self._feed = feed
        self._came_over = link
        self._turn = feed.turn
        self._given_back = False
        """Whether the message was nacked or sent to the dead letters: ``process`` and ``auto_ack`` leave it alone."""

    @property
    def _link(self) -> C:
        """The connection over which to ack or nack the message: its subscription's, which may have moved to another worker."""
        return self._feed.link(self._came_over)

    @property
    def lease(self) -> int | None:
        """The lease number of the message, for ``Client.nack(lease=…)`` in another process; None when the broker knows no lease
        numbers."""
        return self._link.conversation.lease_of(self._feed)

    @property
    def _in_reach(self) -> bool:
        """Whether a request about the lease can have an effect: there is a connection, or the lease came by ``pull`` and
        outlives a connection."""
        return self._link.conversation.online or (self._feed.pulled and self.lease is not None)

    def _check_open(self) -> None:
        """Check that the client can still send an ACK or NACK. Raises: ClientClosed, or the error for which the client gave
        up."""
        conversation = self._link.conversation
        if conversation.is_closed:
            raise conversation._end

    def _nack(
        self, delay: Seconds | None, reason: Reason = None, error: BaseException | None = None, *, dead: bool = False
    ) -> requests.Request[int]:
        """Make the NACK of this message; with ``dead`` it sends the message to the dead letters. Raises: TypeError,
        BadArgument."""
        link, consumer = self._link, self._feed.command.consumer
        failure = describe(reason, error, link.conversation.server, details=link.options.describe_errors)
        ids = [(self.id, self.id)]
        delay = None if dead else delay
        return requests.nack_line(self.topic, consumer, ids, delay, dead=dead, failure=failure, lease=self.lease)

    def _touch(self, visibility: Seconds | None) -> requests.Request[int]:
        """Make the TOUCH that renews this message's lease. Without ``visibility`` the broker takes that of the subscription;
        for a message of ``pull`` that of the pull is sent. Raises: TypeError, BadArgument."""
        if visibility is None and self._feed.pulled and (pulled_ms := self._feed.command.visibility_ms) is not None:
            visibility = pulled_ms / 1000
        return requests.touch(self.topic, self._feed.command.consumer, [(self.id, self.id)], visibility, lease=self.lease)

    def _is_extended(self, request: requests.Request[int] | None) -> bool:
        """Whether the answer to ``_touch`` renewed the lease of this delivery. ``request`` is None when there was no connection
        to ask. If the subscription got the message again meanwhile, the later delivery's lease was renewed, so this returns
        False. A handler that gets False stops."""
        if self._feed.came_again(self.topic, self.id, self._turn):
            return False
        with suppress(ConnectionLost, Moved):
            if request is not None and request.result() > 0:
                return True
        self._feed.let_go(self.topic, self.id)
        return False

    def _handling(self) -> AbstractContextManager[None]:
        """Return the context manager of the handler's span, an empty one if the client does not trace."""
        tracing = self._link.options.tracing
        return _NO_SPAN if tracing is None else tracing.processing(self, self._feed.command.consumer)

    def _handler_failed(
        self, error: BaseException, retry_delay: Seconds | None, dead_on: DeadOn, dead_reason: str | None = None
    ) -> None:
        """Send a NACK without waiting for its reply, since the exception propagates. After a cancellation the message is
        redelivered at once."""
        if self._given_back:
            return
        if isinstance(error, Exception):
            dead = is_dead(error, dead_on, self.topic)
            request = self._nack(retry_delay, dead_reason if dead else None, error, dead=dead)
        else:
            request = self._nack(0.0)
        self._feed.settle(self.topic, self.id)
        if self._in_reach:
            self._link.conversation.send(request.slot)


M = TypeVar("M", bound=LeasedMessage[Any])


class Processing(Generic[M]):
    """Base of the context managers that ``process`` returns: the block is a handler.

    Attributes:
        retry_delay, dead_on: as of ``process``; the block may set them when it knows how it failed.
        dead_reason: the reason in the dead letter, beside the exception; without one it is "rejected".

    Each attribute is checked when it is set: an error at the end of the block would hide the handler's own exception.
    """

    __slots__ = ("_dead_on", "_dead_reason", "_handling", "_message", "_retry_delay")

    def __init__(self, message: M, retry_delay: Seconds | None, dead_on: DeadOn) -> None:
        """Check the arguments. Raises: TypeError, BadArgument."""
        self._message = message
        self._retry_delay: Seconds | None = None
        self._dead_on: DeadOn = ()
        self._dead_reason: str | None = None
        if retry_delay is not None:  # each message pays for what is done here
            self.retry_delay = retry_delay
        if dead_on != ():
            self.dead_on = dead_on
        self._handling = message._handling()

    @property
    def retry_delay(self) -> Seconds | None:
        return self._retry_delay

    @retry_delay.setter
    def retry_delay(self, value: Seconds | None) -> None:
        arguments.to_ms("retry_delay", value)
        self._retry_delay = value

    @property
    def dead_on(self) -> DeadOn:
        return self._dead_on

    @dead_on.setter
    def dead_on(self, value: DeadOn) -> None:
        arguments.exceptions("dead_on", value)
        self._dead_on = value

    @property
    def dead_reason(self) -> str | None:
        return self._dead_reason

    @dead_reason.setter
    def dead_reason(self, value: str | None) -> None:
        self._dead_reason = None if value is None else arguments.text("dead_reason", value)

    if not TYPE_CHECKING:  # a type checker says it itself

        def __call__(self, *_: object) -> NoReturn:
            """Refuse use as a decorator: around a coroutine function it would ack before the work is done."""
            raise TypeError("message.process() is not a decorator: write the work into its `with` or `async with` block")
