"""One connection: reader, handler and writer task, passing chunks.

Contract: delivery.md, "Sessions"; protocol.md, "Framing"; ADR 0005.

    data_received ──► inbox ──► reader ──► runs of commands ──► handler ──► replies, in order ─┐
                                (sans-IO parser)                (broker)                        ├──► writer ──► transport
                                                     subscriptions with something to take ──────┘

One FIFO of replies keeps the order of commands; a reply that waits for a commit holds the ones behind it. Deliveries are taken
by the writer at the moment it has room, so what was leased was written, except for the last write. A subscription begins to
deliver when its own ``OK`` leaves the FIFO. Nothing is awaited per message.
"""

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Literal, cast

from toymq_py import __version__
from toymq_py.broker import Broker, Done
from toymq_py.clock import Clock
from toymq_py.errors import (
    AlreadySubscribed,
    BadArgument,
    BadVersion,
    DiskFull,
    InternalError,
    NoSuchTopic,
    NotSubscribed,
    RequestError,
    ShuttingDown,
    StorageFailed,
    TooManySubscriptions,
    UnknownCommand,
)
from toymq_py.model import is_pattern
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
    ServerConnection,
    Stats,
    Subscribe,
    Topics,
    Touch,
    Unsubscribe,
    encode_batch_header,
    encode_closed,
    encode_dup,
    encode_error,
    encode_hello,
    encode_json,
    encode_messages,
    encode_offsets,
    encode_ok,
    encode_ok_run,
    encode_pong,
)
from toymq_py.storage.committer import NO_SPACE, Commit, CommitState
from toymq_py.topic import Delivery, Subscription, Topic

logger = logging.getLogger("toymq_py.session")

DEFAULT_WINDOW = 1024
PROTOCOL_VERSION = 1
COMMANDS_PER_RUN = 512
"""Commands that are parsed and handled in one piece."""
RUNS_QUEUED_MAX = 4
"""Runs between reader and handler; at the bound the reader waits, and the socket fills up."""
INBOX_BYTES_MAX = 1024 * 1024
"""Unparsed bytes at which reading from the socket is paused."""
WRITE_BYTES = 256 * 1024
"""Deliveries per write: the share of one session in a loop pass."""
SLICE_S = 0.002
"""Time of one session in a loop pass, before it yields."""
REPLY_COST_BYTES = 128
"""What a held reply counts towards ``max_inflight_bytes``, beside the payload."""
FETCH_BYTES_MAX = 8 * 1024 * 1024
"""What one FETCH reads at most, whatever it asks for: the loop must not be held."""
LINGER_S = 1.0
LINGER_BYTES = 1024 * 1024
"""After a fatal error: how long and how much is discarded before the socket closes, so that a reset does not eat the reason."""


class Signal:
    """Wakes the one task that waits; a ``set`` before the wait is not lost."""

    __slots__ = ("_flag", "_loop", "_waiter")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._flag = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        self._flag = True
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> None:
        """Return when set, and unset. Cancellation leaves the signal as it was."""
        if not self._flag:
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._flag = False


class _Held:
    """A reply that comes later. ``make`` is set when it is due, and called when it is its turn to be written, so that many
    large ones that fall due at once are not in memory at once."""

    __slots__ = ("make", "released")

    def __init__(self) -> None:
        self.make: Callable[[], bytes] | None = None
        self.released: Callable[[], None] | None = None


class _PublishReply:
    """``OK`` for each of ``count`` ids, or one ``DUP``, when the commit is done."""

    __slots__ = ("commit", "cost", "count", "duplicate", "first_id")

    def __init__(self, commit: Commit, first_id: int, count: int, cost: int, *, duplicate: bool) -> None:
        self.commit = commit
        self.first_id = first_id
        self.count = count
        self.cost = cost
        self.duplicate = duplicate

    def encode(self) -> bytes:
        if self.commit.state is CommitState.FAILED:
            assert self.commit.error is not None
            return encode_error(self.commit.error) * self.count
        return encode_dup(self.first_id) if self.duplicate else encode_ok_run(self.first_id, self.count)


_Reply = bytes | _Held | _PublishReply


class SessionProtocol(asyncio.Protocol):
    """The transport's side: bytes in, flow control, the end. Starts the session's task through ``accept``."""

    __slots__ = ("_accept", "paused", "session", "transport")

    def __init__(self, accept: Callable[["SessionProtocol"], "Session | None"]) -> None:
        self._accept = accept
        self.transport: asyncio.Transport
        self.session: Session | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is one without saying so
        self.transport.set_write_buffer_limits(high=0)  # so that "not paused" means "the socket took everything"
        self.session = self._accept(self)

    def data_received(self, data: bytes) -> None:
        if self.session is not None:
            self.session.received(data)

    def eof_received(self) -> bool:
        if self.session is None:
            return False
        self.session.received_eof()
        return True  # replies that are due are still written

    def pause_writing(self) -> None:
        if self.session is not None:
            self.session.write_paused = True

    def resume_writing(self) -> None:
        if self.session is not None:
            self.session.write_paused = False
            self.session.writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.session is not None:
            self.session.connection_lost(exc)


class Session:
    """State of one connection. Touched only by its tasks and by the callbacks it hands to the broker, all on the loop."""

    def __init__(
        self,
        number: int,
        transport: asyncio.Transport,
        broker: Broker,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        options = broker.options
        self.number = number
        self.transport = transport
        self.write_paused = False
        self.writable = Signal(loop)
        self._broker = broker
        self._clock = clock
        self._loop = loop
        self._metrics = broker.metrics
        self._parser = ServerConnection(options.max_payload_bytes)
        self._inbox: list[bytes] = []
        self._inbox_bytes = 0
        self._reading_paused = False
        self._arrived = Signal(loop)
        self._runs: deque[list[Command]] = deque()
        self._run_ready = Signal(loop)
        self._run_room = Signal(loop)
        self._replies: deque[_Reply] = deque()
        self._waited_for: Commit | None = None
        self._held_bytes = 0
        self._max_held_bytes = options.max_inflight_bytes
        self._replies_left = Signal(loop)
        self._subscriptions: dict[str, Subscription] = {}
        self._hungry: dict[Subscription, None] = {}
        self._silent: set[Subscription] = set()  # their OK has not left the FIFO yet
        self._pushes: list[bytes] = []
        self._last_write: list[tuple[Subscription, int, int, int]] = []
        self._last_write_bytes = 0
        self._paused = False
        self._greeted = False
        self._eof = False
        self._lost = False
        self._handled_all = False
        self._closing: Literal["no", "after replies", "lingering"] = "no"
        self._linger_bytes = 0
        self._waits: set[Callable[[], None]] = set()
        self._owed: list[Subscription] | None = None
        self.finished = asyncio.Event()

    # -- from the transport

    def received(self, data: bytes) -> None:
        if self._closing == "lingering":
            self._linger_bytes += len(data)
            if self._linger_bytes > LINGER_BYTES:
                self.transport.abort()
            return
        self._inbox.append(data)
        self._inbox_bytes += len(data)
        if self._inbox_bytes > INBOX_BYTES_MAX and not self._reading_paused:
            self._reading_paused = True
            self.transport.pause_reading()
        self._arrived.set()

    def received_eof(self) -> None:
        self._eof = True
        self._arrived.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        if self.write_paused:
            self._give_back_unsent()
        for signal in (self._arrived, self._run_ready, self._run_room, self._replies_left, self.writable):
            signal.set()

    def _give_back_unsent(self) -> None:
        """Deliveries of the last write that the socket did not take go back uncounted. How much it took, the transport may
        not know any more; then nothing of the write counts."""
        unsent = self.transport.get_write_buffer_size() or self._last_write_bytes
        for subscription, first, last, end in self._last_write:
            if end > self._last_write_bytes - unsent:
                subscription.unsend(first, last)

    # -- the tasks

    async def run(self) -> None:
        """Serve until the connection ends. Leaves nothing behind: leases are given back, waits withdrawn."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._read())
                tasks.create_task(self._write())
                await self._handle()
        finally:
            self._let_go()
            self.transport.close()
            self.finished.set()

    def _let_go(self) -> None:
        for subscription in self._subscriptions.values():
            subscription.close()
        self._subscriptions.clear()
        self._hungry.clear()
        for withdraw in list(self._waits):
            withdraw()

    async def _read(self) -> None:
        """Parse what arrives; hand over runs of commands."""
        parser = self._parser
        while not self._lost and self._closing == "no":
            await self._arrived.wait()
            inbox, self._inbox = self._inbox, []
            self._inbox_bytes = 0
            for data in inbox:
                parser.receive_data(data)
                while commands := parser.next_commands(COMMANDS_PER_RUN):
                    self._runs.append(commands)
                    self._run_ready.set()
                    while len(self._runs) >= RUNS_QUEUED_MAX and not self._lost:
                        await self._run_room.wait()
                    if self._lost:
                        return
            if self._reading_paused and self._inbox_bytes <= INBOX_BYTES_MAX:
                self._reading_paused = False
                if not self.transport.is_closing():
                    self.transport.resume_reading()
            if self._eof and not self._inbox:
                parser.receive_eof()
                while commands := parser.next_commands(COMMANDS_PER_RUN):
                    self._runs.append(commands)
                if parser.ended_torn:
                    self._metrics.torn_total += 1
                break
        self._handled_all = True
        self._run_ready.set()

    async def _handle(self) -> None:
        """Apply commands in order; never waits for an effect, only for room for replies."""
        slice_end = self._clock.monotonic() + SLICE_S
        while not self._lost:
            if not self._runs:
                if self._handled_all:
                    break
                await self._run_ready.wait()
                slice_end = self._clock.monotonic() + SLICE_S
                continue
            commands = self._runs.popleft()
            self._run_room.set()
            for command in commands:
                self._apply_safely(command)
                if self._closing != "no":
                    self._runs.clear()
                    self._handled_all = True
                    self._arrived.set()
                    break
                if self._clock.monotonic() > slice_end:
                    self.writable.set()
                    await asyncio.sleep(0)
                    slice_end = self._clock.monotonic() + SLICE_S
            self.writable.set()
            if self._owed is not None:
                self._leave_when_done()
            while self._held_bytes > self._max_held_bytes and not self._lost:
                await self._replies_left.wait()
        if self._eof and self._closing == "no":
            self._closing = "after replies"
            for withdraw in list(self._waits):  # an end of stream cuts waits short
                withdraw()
        self.writable.set()

    async def _write(self) -> None:
        """Write what is due, and deliveries while there is room."""
        while not self._lost:
            await self.writable.wait()
            while not self.write_paused and not self._lost:
                out = self._due_replies()
                self._last_write = []
                if self._hungry and not self._paused and self._closing == "no":
                    self._take_deliveries(out)
                if not out:
                    break
                data = b"".join(out) if len(out) > 1 else out[0]
                self._last_write_bytes = len(data)
                self.transport.write(data)
                if len(data) >= WRITE_BYTES // 2 or self._hungry:
                    await asyncio.sleep(0)  # others first
            if self._closing == "after replies" and not self._replies and not self.write_paused:
                await self._end()
                return

    async def _end(self) -> None:
        """Everything due is written: close, after a moment of discarding when the client may still be sending."""
        if not self._eof and not self._lost:
            self._closing = "lingering"
            if self._reading_paused:
                self.transport.resume_reading()
            if self.transport.can_write_eof():
                self.transport.write_eof()
            try:
                async with asyncio.timeout(LINGER_S):
                    while not self._eof and not self._lost:
                        await self._arrived.wait()
            except TimeoutError:
                pass
        self.transport.close()
        self._lost = True
        self._run_ready.set()
        self._arrived.set()
        self._run_room.set()
        self._replies_left.set()

    # -- replies

    def _due_replies(self) -> list[bytes]:
        """Everything at the head of the FIFO that waits for nothing, and the pushes."""
        out: list[bytes] = []
        replies = self._replies
        freed = size = 0
        while replies and size < WRITE_BYTES:
            reply = replies[0]
            if type(reply) is bytes:
                out.append(reply)
                freed += REPLY_COST_BYTES + len(reply)
                size += len(reply)
            elif type(reply) is _PublishReply:
                commit = reply.commit
                if commit.state is CommitState.PENDING:
                    if commit is not self._waited_for:
                        self._waited_for = commit
                        commit.add_waiter(self.writable.set)
                    break
                if commit.state is CommitState.FAILED:
                    self._metrics.error_total += reply.count
                out.append(reply.encode())
                size += len(out[-1])
                freed += reply.cost
            else:
                assert isinstance(reply, _Held)
                if reply.make is None:
                    break
                out.append(self._make_safely(reply.make))
                size += len(out[-1])
                freed += REPLY_COST_BYTES
                if reply.released is not None:
                    reply.released()
            replies.popleft()
        if freed:
            self._held_bytes -= freed
            self._replies_left.set()
        if self._pushes:
            out += self._pushes
            self._pushes = []
        return out

    def _make_safely(self, make: Callable[[], bytes]) -> bytes:
        try:
            return make()
        except RequestError as error:
            refusal = error
        except OSError as error:
            logger.error("session %d: %s", self.number, error)  # noqa: TRY400 (the disk, not us)
            refusal = _storage_error(error)
        except Exception:
            logger.exception("session %d: bug in a reply", self.number)
            refusal = InternalError("a bug in the broker; its log has the details")
        self._metrics.error_total += 1
        return encode_error(refusal)

    def _reply(self, reply: bytes) -> None:
        self._replies.append(reply)
        self._held_bytes += REPLY_COST_BYTES + len(reply)

    def _error(self, error: RequestError) -> None:
        self._metrics.error_total += 1
        self._reply(encode_error(error))
        if error.fatal:
            self._closing = "after replies"

    def _hold(self) -> _Held:
        """A place in the FIFO for a reply that comes later."""
        held = _Held()
        self._replies.append(held)
        self._held_bytes += REPLY_COST_BYTES
        return held

    def _fill(self, held: _Held, make: Callable[[], bytes]) -> None:
        """The reply is due."""
        held.make = make
        self.writable.set()

    # -- deliveries

    def _wake(self, subscription: Subscription) -> None:
        if subscription not in self._silent:
            self._hungry[subscription] = None
            self.writable.set()

    def _take_deliveries(self, out: list[bytes]) -> None:
        """Fill one write, the subscriptions in turn."""
        room = WRITE_BYTES
        size = sum(map(len, out))
        while self._hungry and room > 0:
            subscription = next(iter(self._hungry))
            del self._hungry[subscription]
            try:
                delivery = subscription.take(room)
            except OSError:
                logger.exception("session %d: cannot read %s", self.number, subscription.topic.name)
                continue
            if delivery is None:
                continue
            self._hungry[subscription] = None  # behind the others
            frames = _encode(subscription.topic.name, delivery)
            sent = sum(map(len, frames))
            out += frames
            size += sent
            room -= sent
            self._last_write.append((subscription, delivery.first_id, delivery.last_id, size))

    def _ended(self, subscription: Subscription, code: str) -> None:
        """The topic ended it: CLOSED, behind the OK of its SUB and behind all that was delivered."""
        name = subscription.topic.name
        if self._subscriptions.get(name) is subscription:
            del self._subscriptions[name]
        self._hungry.pop(subscription, None)
        push = encode_closed(name, subscription.consumer.name, code)
        if subscription in self._silent:
            self._silent.discard(subscription)
            self._reply(push)
        else:
            self._pushes.append(push)
        self.writable.set()

    # -- commands

    def _apply_safely(self, command: Command) -> None:
        """Apply one command; whatever happens, it gets exactly its replies."""
        try:
            self._apply(command)
        except RequestError as error:
            self._refuse(command, error)
        except OSError as error:
            logger.error("session %d: %s failed: %s", self.number, _verb(command), error)  # noqa: TRY400 (the disk, not us)
            self._error(_storage_error(error))
        except Exception:
            logger.exception("session %d: bug in %s", self.number, _verb(command))
            self._refuse(command, InternalError("a bug in the broker; its log has the details"))

    def _refuse(self, command: Command, error: RequestError) -> None:
        """One ``ERR`` per command, a run of PUBs being many; a fatal one is said once."""
        for _ in range(len(command.keys) if isinstance(command, Publish) and not error.fatal else 1):
            self._error(error)

    def _apply(self, command: Command) -> None:
        match command:
            case Publish():
                self._publish(command)
            case Ack():
                self._ack(command)
            case Rejected():
                self._error(command.error)
            case Ping():
                self._reply(encode_pong())
            case Subscribe():
                self._subscribe(command)
            case Unsubscribe():
                self._unsubscribe(command)
            case Nack():
                self._nack(command)
            case Touch():
                topic = self._broker.topic(command.topic)
                visibility_s = None if command.visibility_ms is None else command.visibility_ms / 1000
                self._reply(encode_ok(topic.touch(command.consumer, command.ids, visibility_s)))
            case Pause():
                self._paused = True
                self._reply(encode_ok(0))
            case Resume():
                self._paused = False
                self._reply(encode_ok(0))
            case Fetch():
                self._fetch(command)
            case Offsets():
                self._offsets(command)
            case Create():
                self._stored(lambda done: self._broker.create(command.topic, command.settings, done))
            case Config():
                self._config(command)
            case Delete():
                self._delete(command)
            case Seek():
                self._seek(command)
            case Forget():
                topic = self._broker.topic(command.topic)
                topic.forget(command.consumer)
                self._stored(topic.flush_offsets)
            case Topics():
                pattern = command.pattern
                self._in_turn(lambda: _json([topic.describe() for topic in self._broker.matching(pattern)]))
            case Describe():
                described = self._broker.topic(command.topic)
                self._in_turn(lambda: _json(described.describe()))
            case Stats():
                self._in_turn(lambda: _json(self._broker.stats()))
            case Hello():
                self._hello(command)
            case Quit():
                self._reply(encode_ok(0))
                self._closing = "after replies"
            case Pull() | Purge() | Redrive():
                raise UnknownCommand(f"{_verb(command)} is not in this version")
        self._greeted = True

    def _hello(self, command: Hello) -> None:
        if self._greeted:
            raise BadArgument("HELLO is the first line of a connection or none")
        if command.version != PROTOCOL_VERSION:
            raise BadVersion(f"{PROTOCOL_VERSION} is the highest version spoken here")
        self._reply(encode_hello(f"toymq/{__version__}", self._broker.options.max_payload_bytes))

    def _publish(self, command: Publish) -> None:
        if self._broker.shutting_down:
            raise ShuttingDown("the broker is shutting down; publish to it again later")
        for name, value in (("delay", command.delay_ms), ("ttl", command.ttl_ms), ("seq", command.seq)):
            if value is not None:
                raise BadArgument(f"PUB with {name} is not in this version")
        keys, bodies, headers = command.keys, command.bodies, None
        if command.hdr:
            headers = [body[: command.hdr] for body in bodies]
            bodies = [body[command.hdr :] for body in bodies]
        topic = self._broker.topic_or_new(command.topic)
        at = 0
        for outcome in topic.publish(keys, bodies, headers):
            if outcome.error is not None:
                for _ in range(outcome.count):
                    self._error(outcome.error)
            else:
                cost = REPLY_COST_BYTES * outcome.count + sum(map(len, bodies[at : at + outcome.count]))
                if outcome.duplicate:
                    self._metrics.duplicate_total += 1
                self._replies.append(
                    _PublishReply(
                        outcome.commit, outcome.first_id, outcome.count, cost, duplicate=outcome.duplicate
                    )
                )
                self._held_bytes += cost
            at += outcome.count

    def _subscribe(self, command: Subscribe) -> None:
        if is_pattern(command.topic):
            raise BadArgument("patterns are not in this version")
        if command.mode == "shared":
            raise BadArgument("mode=shared is not in this version")
        if self._broker.shutting_down:
            raise ShuttingDown("the broker is shutting down")
        name = command.topic
        if name in self._subscriptions:
            raise AlreadySubscribed(f"this session is subscribed to {name} already")
        limit = self._broker.options.max_subscriptions
        if len(self._subscriptions) >= limit:
            raise TooManySubscriptions(f"{limit} subscriptions are the limit of a session (--max-subscriptions)")
        topic = self._broker.topic_or_new(name)
        if topic.deleted:
            raise NoSuchTopic(f"{name} is being deleted")
        subscription, must_flush = topic.subscribe(
            command.consumer,
            command.start,
            window=command.window or DEFAULT_WINDOW,
            visibility_s=None if command.visibility_ms is None else command.visibility_ms / 1000,
            wake=self._wake,
            ended=self._ended,
        )
        self._subscriptions[name] = subscription
        self._silent.add(subscription)

        def released() -> None:
            if subscription in self._silent:
                self._silent.discard(subscription)
                self._wake(subscription)

        if must_flush:
            held = self._stored(topic.flush_offsets, count=1)
        else:
            held = self._hold()
            self._fill(held, lambda: encode_ok(1))
        held.released = released

    def _unsubscribe(self, command: Unsubscribe) -> None:
        subscription = self._subscriptions.get(command.topic)
        if subscription is None or subscription.consumer.name != command.consumer:
            raise NotSubscribed(f"this session is not subscribed to {command.topic} as {command.consumer}")
        del self._subscriptions[command.topic]
        self._hungry.pop(subscription, None)
        self._silent.discard(subscription)
        subscription.close()
        self._reply(encode_ok(0))

    def _ack(self, command: Ack) -> None:
        topic = self._broker.topic(command.topic)
        count = topic.ack(command.consumer, command.ids)
        if command.sync:
            self._stored(topic.flush_offsets, count=count)
        else:
            self._reply(encode_ok(count))

    def _nack(self, command: Nack) -> None:
        if command.dead:
            raise BadArgument("NACK with dead=1 is not in this version")
        topic = self._broker.topic(command.topic)
        delay_s = None if command.delay_ms is None else command.delay_ms / 1000
        self._reply(encode_ok(topic.nack(command.consumer, command.ids, delay_s)))

    def _fetch(self, command: Fetch) -> None:
        topic = self._broker.topic(command.topic)
        held = self._hold()

        def make() -> bytes:
            if topic.deleted:
                raise NoSuchTopic(f"{topic.name} was deleted")
            return self._batch(command, topic)

        if command.wait_ms and command.from_id == topic.log.committed_id:
            self._wait_for_commit(topic, command.wait_ms / 1000, lambda: self._fill(held, make))
        else:
            self._fill(held, make)

    @staticmethod
    def _batch(command: Fetch, topic: Topic) -> bytes:
        max_bytes = min(command.max_bytes, FETCH_BYTES_MAX)
        frames, count, next_id = topic.log.read_frames(command.from_id, command.max_count, max_bytes)
        return b"%b%b\n" % (encode_batch_header(topic.name, count, next_id, len(frames)), frames)

    def _wait_for_commit(self, topic: Topic, wait_s: float, done: Callable[[], None]) -> None:
        """``done`` is called when something is committed, the time is over, or the stream ends."""

        def finish() -> None:
            if finish in self._waits:
                self._waits.discard(finish)
                timer.cancel()
                withdraw()
                done()

        self._waits.add(finish)
        timer = self._loop.call_later(wait_s, finish)
        withdraw = topic.when_committed(finish)

    def _offsets(self, command: Offsets) -> None:
        log = self._broker.topic(command.topic).log

        def make() -> bytes:
            first_id = log.first_id if command.at_ms is None else log.id_at_time(command.at_ms * 1_000_000)
            return encode_offsets(command.topic, first_id, log.committed_id)

        self._in_turn(make)

    def _config(self, command: Config) -> None:
        topic = self._broker.topic(command.topic)

        def answer() -> bytes:
            return encode_json(json.dumps(topic.settings.to_json()).encode())

        if not command.settings:
            self._reply(answer())
            return
        self._stored(
            lambda done: self._broker.configure(command.topic, command.settings, done), answer=answer
        )

    def _delete(self, command: Delete) -> None:
        counted = 0

        def begin(done: Done) -> None:
            def deleted(count: int, error: OSError | None) -> None:
                nonlocal counted
                counted = count
                done(error)

            self._broker.delete(command.topic, deleted)

        self._stored(begin, answer=lambda: encode_ok(counted))

    def _seek(self, command: Seek) -> None:
        if self._broker.shutting_down:
            raise ShuttingDown("the broker is shutting down")
        topic = self._broker.topic(command.topic)
        target = topic.seek(command.consumer, command.start)
        self._stored(topic.flush_offsets, count=target)

    def _stored(
        self,
        begin: Callable[[Done], None],
        *,
        count: int = 0,
        answer: Callable[[], bytes] | None = None,
    ) -> _Held:
        """Reply when ``begin``'s effect is on stable storage: with ``answer``, or ``OK <count>``.

        Raises: RequestError when ``begin`` does; then nothing is queued.
        """
        held = _Held()

        def done(error: OSError | RequestError | None) -> None:
            if error is not None:
                self._metrics.error_total += 1
                refused = encode_error(error if isinstance(error, RequestError) else _storage_error(error))
                self._fill(held, lambda: refused)
            else:
                self._fill(held, answer or (lambda: encode_ok(count)))

        begin(done)
        self._replies.append(held)
        self._held_bytes += REPLY_COST_BYTES
        return held

    def _in_turn(self, make: Callable[[], bytes]) -> None:
        """A reply that is made when it is its turn to be written: it sees what every command before it did, commits
        included."""
        self._fill(self._hold(), make)

    # -- shutdown

    def inflight(self) -> list[Subscription]:
        """Subscriptions of which something is inflight to this session."""
        return [s for s in self._subscriptions.values() if s.consumer.inflight_of(s)]

    def shut_down(self, owed: list[Subscription]) -> None:
        """The broker shuts down: close as soon as every reply is written and what was inflight is acked."""
        self._owed = owed
        self._leave_when_done()

    def _leave_when_done(self) -> None:
        if self._owed is None or self._closing != "no":
            return
        self._owed = [s for s in self._owed if s.consumer.floor <= s.last_sent]
        if not self._owed and not self._runs and not self._inbox:
            self._closing = "after replies"
            for withdraw in list(self._waits):
                withdraw()
            for signal in (self.writable, self._arrived, self._run_ready):
                signal.set()

    def abort(self) -> None:
        """The deadline is over."""
        self.transport.abort()


def refuse(transport: asyncio.Transport, error: RequestError) -> None:
    """Say why a connection is not served, and close it after a moment: a reset must not eat the reason."""
    transport.write(encode_error(error))
    if transport.can_write_eof():
        transport.write_eof()
    asyncio.get_running_loop().call_later(LINGER_S, transport.close)


def _encode(topic: str, delivery: Delivery) -> list[bytes]:
    """MSG frames; a run's first attempts are encoded once and shared by all subscribers."""
    records = delivery.records
    if delivery.attempt == 1:
        frames: list[bytes] | None = records.memo
        if frames is None:
            frames = records.memo = encode_messages(topic, records, 1)
        return frames[delivery.start : delivery.stop] if delivery.stop - delivery.start < len(frames) else frames
    part = slice(delivery.start, delivery.stop)
    again = type(records)(
        records.ids[part], records.ts_ns[part], records.keys[part], records.payloads[part],
        None if records.headers is None else records.headers[part],
    )  # fmt: skip
    return encode_messages(topic, again, delivery.attempt)


def _json(value: Any) -> bytes:
    return encode_json(json.dumps(value).encode())


def _verb(command: Command) -> str:
    return type(command).__name__.upper()


def _storage_error(error: OSError) -> RequestError:
    if error.errno in NO_SPACE:
        return DiskFull("no space left on the disk")
    return StorageFailed(f"the disk failed: {error.strerror or error}")

