"""One channel of an AMQP connection: its methods, applied to the broker.

Contract: amqp.md, "Model". A method is applied at once, or returns a coroutine where it has to wait for the disk; the frames
behind it on the connection then wait, too. Belongs to the event loop.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from toymq_py.amqp import consumers, methods, properties
from toymq_py.amqp.connection import PUBLISH, Content
from toymq_py.amqp.consumers import Consumers
from toymq_py.amqp.declarations import Declarations, Later
from toymq_py.amqp.deliveries import content_frames
from toymq_py.amqp.errors import COMMAND_INVALID, NO_ROUTE, NOT_IMPLEMENTED, PRECONDITION_FAILED, AmqpError, amqp_error
from toymq_py.amqp.fields import VALUES_MAX
from toymq_py.amqp.methods import Method
from toymq_py.amqp.properties import Envelope
from toymq_py.amqp.publishing import Confirms, Held, Publishes
from toymq_py.amqp.queues import Queues
from toymq_py.amqp.replies import REPLY_TO, is_reply_name, reply_name
from toymq_py.amqp.topology import DELAYED
from toymq_py.amqp.transaction import Transaction
from toymq_py.auth import audit
from toymq_py.broker_waits import stored
from toymq_py.errors import RequestError
from toymq_py.units import DURATION_MS_MAX

REPLY_TO_BYTES = REPLY_TO.encode()
READ_THE_QUEUE = frozenset(("basic.get", "queue.declare", "queue.purge", "queue.delete"))
"""Methods that wait for earlier publishes of their channel, whose messages are in the queue once they are on stable storage."""


class Outlet(consumers.Outlet, Protocol):
    """What a channel needs of its connection."""

    body_bytes_max: int
    held: Held

    def fail(self, channel: int, error: AmqpError) -> None:
        """Close the channel, or the connection, with an error that no method caused."""

    def progress(self) -> None:
        """Called when publishes were answered."""


class Channel:
    """State of one channel."""

    def __init__(self, number: int, outlet: Outlet, queues: Queues) -> None:
        self.number = number
        self.queues = queues
        self._outlet = outlet
        self._confirms: Confirms | None = None
        self._transaction: Transaction | None = None
        self._closed = False
        """Whether the channel has closed. Then nothing more is sent for it, as its number may belong to another channel."""
        self.publishes = Publishes(
            queues, outlet.held, confirmed=self._confirmed, refused=self._refused, progress=outlet.progress,
            waits_for_space=lambda: not self.tells_refusals,
        )  # fmt: skip
        declarations = Declarations(outlet, queues, self._reply)
        self.consumers = Consumers(number, outlet, queues, self._reply, declarations.queue_of, self._in_transaction)
        self._handlers: Mapping[str, Callable[[Method], Later]] = {
            **declarations.handlers, **self.consumers.handlers,
            "confirm.select": self._confirm_select, "tx.select": self._tx_select, "tx.commit": self._tx_commit,
            "tx.rollback": self._tx_rollback,
        }  # fmt: skip

    @property
    def tells_refusals(self) -> bool:
        """Whether the client learns which publishes are refused, because it waits for confirms or for its commit."""
        return self._confirms is not None or self._transaction is not None

    def _reply(self, name: str, **values: Any) -> None:
        if not self._closed:
            self._outlet.write(methods.encode(self.number, name, **values))

    def apply(self, method: Method) -> Later:
        """Apply a method. Raises: AmqpError, RequestError, OSError."""
        handler = self._handlers.get(method.name)
        if handler is None:
            raise AmqpError(COMMAND_INVALID, f"{method.name} is not a client's", method.index)
        if method.name != "basic.ack":
            self.flush()
            if self._closed:  # a publish was refused
                return None
            if method.name in READ_THE_QUEUE and self.publishes.waiting:
                return self._behind_publishes(handler, method)
        return handler(method)

    async def _behind_publishes(self, handler: Callable[[Method], Later], method: Method) -> None:
        await stored(self.publishes.when_answered)
        if not self._closed and (later := handler(method)) is not None:
            await later

    def describe(self) -> dict[str, Any]:
        """The channel as a JSON object (docs/http.md, "Connections")."""
        mode = "transactions" if self._transaction is not None else None if self._confirms is None else "confirms"
        return {"channel": self.number, "mode": mode, **self.consumers.describe(), "unconfirmed": self.publishes.count}

    def flush(self) -> None:
        """Carry out the collected publishes and acks."""
        self.publishes.flush()
        self.consumers.flush()

    def close(self) -> None:
        """End the channel: its consumers go, and its messages are ready again. Idempotent."""
        if self._closed:
            return
        self.flush()
        self._closed = True
        if self._transaction is not None:
            self._transaction.roll_back()
        self.consumers.close()

    # -- publishing

    def publish(self, content: Content) -> None:
        """Publish a message. Raises: AmqpError."""
        if content.method.index != PUBLISH:
            raise AmqpError(COMMAND_INVALID, f"{content.method.name} is not a client's", content.method.index)
        try:
            self._publish(content)
        except AmqpError as error:
            error.method = PUBLISH
            raise
        if self._closed:  # one before it was refused
            self.publishes.abandon()

    def _publish(self, content: Content) -> None:
        """Publish a message that has come as a whole. Raises: AmqpError."""
        method, body = content.method, content.body
        if method["immediate"]:
            raise AmqpError(NOT_IMPLEMENTED, "immediate=true")
        exchange, routing_key = method["exchange"], method["routing_key"]
        if REPLY_TO_BYTES in content.properties:
            content.properties = self._with_reply_name(content.properties)
        envelope = Envelope(exchange, routing_key, content.properties)
        block, found = properties.as_logged(envelope)
        self._check_size(len(body) + len(block))
        if (user := found.get("user-id")) is not None and user != self._outlet.rights.user:
            text = f"user_id property set to '{user[:80]}' but authenticated user was '{self._outlet.rights.user[:80]}'"
            raise AmqpError(PRECONDITION_FAILED, text)
        if not exchange and is_reply_name(routing_key):
            self._reply_to(envelope, content, mandatory=method["mandatory"])
            return
        topics = self._targets(exchange, routing_key, found.get("headers", {}))
        ttl_ms = _ttl_ms(found.get("expiration"))
        delay_ms = _delay_ms(found) if exchange and self.queues.topology.exchange(exchange).type == DELAYED else None
        if not topics and method["mandatory"]:
            self._return(exchange, routing_key, content)
        self._in_transaction(lambda: self.publishes.add(topics, body, block, ttl_ms, delay_ms), len(body) + len(block))

    def _targets(self, exchange: str, routing_key: str, headers: Mapping[str, Any]) -> tuple[str, ...]:
        """The topics of a publish, which the client may publish to. Without the right it is not told whether there is one.
        Raises: AmqpError."""
        rights = self._outlet.rights
        if not exchange:
            topic = self.queues.topic_name(routing_key)
            rights.publish(topic)
            return (topic,) if self.queues.broker.has(topic) else ()
        rights.publish_by(exchange)
        topics = tuple(self.queues.targets(exchange, routing_key, headers))
        for topic in topics:
            rights.publish(topic)
        return topics

    def _with_reply_name(self, raw: bytes) -> bytes:
        """Replace ``amq.rabbitmq.reply-to`` in encoded properties by this channel's own reply name. Raises: AmqpError."""
        found = properties.decode(raw, values_max=VALUES_MAX)
        if found.get("reply-to") != REPLY_TO:
            return raw
        if not self.consumers.reply_token:
            raise AmqpError(PRECONDITION_FAILED, f"fast reply consumer does not exist: consume from {REPLY_TO} before")
        return properties.encode({**found, "reply-to": reply_name(self.consumers.reply_token)})

    def _reply_to(self, envelope: Envelope, content: Content, *, mandatory: bool) -> None:
        """Send a direct reply to the channel that waits for it; return it to its publisher if none does and it is mandatory."""
        came = self.queues.replies.waiting(envelope.routing_key)
        if came is not None:
            self._in_transaction(lambda: came(envelope, content.body), len(content.body))
        elif mandatory:
            self._return(envelope.exchange, envelope.routing_key, content)
        self._in_transaction(lambda: self.publishes.add((), b"", b"", None, None))

    def _check_size(self, size: int) -> None:
        """Refuse a body that is too large. Raises: AmqpError."""
        most = self._outlet.body_bytes_max
        if size > most:
            raise AmqpError(PRECONDITION_FAILED, f"message and headers are larger than max size {most} (--max-payload)")

    def _return(self, exchange: str, routing_key: str, content: Content) -> None:
        self.publishes.flush()  # the confirms before this one go first
        head = methods.encode(
            self.number, "basic.return", reply_code=NO_ROUTE, reply_text="NO_ROUTE", exchange=exchange, routing_key=routing_key
        )
        self._outlet.write(head, *content_frames(self.number, content.properties, content.body, self._outlet.frame_max))

    def _confirmed(self, count: int, stored: bool) -> None:
        if self._confirms is not None and not self._closed:
            self._outlet.write(self._confirms.frame(count, stored))

    def _refused(self, error: RequestError, topic: str, as_declared: bool) -> None:
        """Handle a publish that was not stored: fail the transaction, or close a channel without confirms, whose client would
        not learn of it otherwise. ``as_declared``: the queue was declared with a maximum length, and is full."""
        if error.code in audit.REFUSED:
            self._outlet.audit("publish", {"topic": topic}, error.code)
        told = amqp_error(error)
        told.method = PUBLISH
        if self._transaction is not None:
            self._transaction.failed = told
        elif self._confirms is None and not self._closed and not as_declared:
            told.code = PRECONDITION_FAILED
            self._outlet.fail(self.number, told)

    def _confirm_select(self, method: Method) -> Later:
        if self._transaction is not None:
            raise AmqpError(PRECONDITION_FAILED, "cannot switch from tx to confirm mode", method.index)
        self._confirms = self._confirms or Confirms(self.number)
        if not method["no_wait"]:
            self._reply("confirm.select-ok")
        return None

    # -- transactions

    def _in_transaction(self, call: Callable[[], None], size: int = 0) -> None:
        """Make a call now, or in a transaction at tx.commit. ``size``: bytes that it holds until then. Raises: AmqpError."""
        if self._transaction is None:
            call()
        else:
            self._transaction.add(call, size)

    def _tx_select(self, method: Method) -> Later:
        if self._confirms is not None:
            raise AmqpError(PRECONDITION_FAILED, "cannot switch from confirm to tx mode", method.index)
        self._transaction = self._transaction or Transaction(self._outlet.held)
        self._reply("tx.select-ok")
        return None

    def _tx_commit(self, method: Method) -> Later:
        if self._transaction is None:
            raise AmqpError(PRECONDITION_FAILED, "channel is not transactional", method.index)
        return self._commit(self._transaction)

    async def _commit(self, transaction: Transaction) -> None:
        transaction.begin_commit()
        self.flush()
        if self.publishes.waiting:
            await stored(self.publishes.when_answered)
        transaction.end_commit()
        self._reply("tx.commit-ok")

    def _tx_rollback(self, method: Method) -> Later:
        if self._transaction is None:
            raise AmqpError(PRECONDITION_FAILED, "channel is not transactional", method.index)
        self._transaction.roll_back()
        self._reply("tx.rollback-ok")
        return None


def _ttl_ms(expiration: str | None) -> int | None:
    """Parse an ``expiration`` property to milliseconds; None without one. Raises: AmqpError."""
    if expiration is None:
        return None
    found = properties.milliseconds(expiration)
    if found is None:
        raise AmqpError(PRECONDITION_FAILED, f"invalid expiration '{expiration[:40]}': write milliseconds")
    return max(found, 1)


def _delay_ms(found: Mapping[str, Any]) -> int | None:
    """The delay in milliseconds of a message to a delayed exchange, from its header ``x-delay``. Raises: AmqpError."""
    delay = found.get("headers", {}).get("x-delay")
    if delay is None:
        return None
    if not isinstance(delay, int) or isinstance(delay, bool):
        raise AmqpError(PRECONDITION_FAILED, f"invalid x-delay {str(delay)[:40]!r}: write milliseconds, as a number")
    return min(int(delay), DURATION_MS_MAX) if delay > 0 else None
