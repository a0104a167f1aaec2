"""Users: programs with the real clients, recorded like the raw clients of ``workload``.

    a-pub           asyncio, several publishes at a time, with keys and with the client's own numbers
    a-4, 32, 1024   asyncio, one subscription each with that window; the handler yields to other tasks
    b-pub           blocking, one at a time, in a thread
    b-16            blocking, a subscription, in a thread

``amqp_users`` has two more, which speak AMQP.

Users have a topic of their own, so that their load does not depend on the raw clients. They test reconnecting: after every
start of the broker each user has to make progress, or it is recorded as "stalled". A client has only one connection here, so
that its events (``on_event``) show which connection an operation used.
"""

import asyncio
import os
import random
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from toymq import Client, ClientClosed, Connected, ConnectionLost, Disconnected, Receipt, RequestTimeout, connect, sync
from toymq.link import Link
from toymq.message import Delivery
from toymq.sync.link import BlockingLink
from toymq.url import Address
from toymq_chaos.history import CONFIRM, Recorder, Result, digest_of
from toymq_chaos.leases import BUFFERED
from toymq_chaos.workload import Habits
from toymq_py.errors import ToymqError

TIMEOUT_S = 60.0
"""Time-out of a request, outages included."""
BACKOFF_MAX_S = 0.5
LOOK_S = 0.2
"""Interval at which a thread checks whether to end."""
AT_A_TIME = 4
"""Concurrent publishes of the asyncio client."""
PAYLOAD_BYTES = (0, 10, 100, 1000, 8000)
RATE = 60.0
"""Messages a second and publisher."""
TOPIC = "own"
WINDOWS = (4, 32, 1024)
"""The windows of the asyncio client's subscriptions."""
BLOCKING_WINDOW = 16
ENDING_S = 3.0
"""Time for a thread to end; closing a client takes a second."""
ASYNCIO, BLOCKING, AMQP = "a", "b", "c"
"""Prefix of the users' names."""
NEEDED = frozenset(((TOPIC, f"{BLOCKING}-{BLOCKING_WINDOW}"), *((TOPIC, f"{ASYNCIO}-{window}") for window in WINDOWS)))
"""Topic and consumer of each subscription."""


Choice = Literal["forget", "nack", "sync", "ack"]
"""Outcomes of a handler; "sync": it acks and waits for the disk."""


class Item(NamedTuple):
    """A message to publish. Without a key the client numbers it; then its payload begins with the name that it has in the
    history."""

    name: str
    payload: bytes
    number: int | None
    """Number of a message without a key."""


def items(name: str, rng: random.Random, *, numbered: bool) -> Iterator[Item]:
    """Yield items without end; ``numbered``: every second one has no key, so that the client numbers it."""
    n = 0
    while True:
        payload = rng.randbytes(rng.choice(PAYLOAD_BYTES))
        if numbered and n % 2:
            yield Item(f"{name}-{n}", f"{name}-{n} ".encode() + payload, n)
        else:
            yield Item(f"{name}-{n}", payload, None)
        n += 1


class Diary:
    """Records the operations of one client in the history. The client has one connection at a time, and ``name.n`` is the n-th,
    as for the raw clients."""

    def __init__(self, recorder: Recorder, name: str) -> None:
        """``name``: the name of the client, and of its consumer when it subscribes."""
        self.moved = False
        """Whether it had an answer or a delivery since this was reset."""
        self.losses = 0
        """Connections that it has lost."""
        self.process = f"{name}.0"
        """The connection that the next operation is recorded for."""
        self._recorder = recorder
        self.name = name
        self._connected = False
        self._subscribed = False
        self.since_ns = recorder.now_ns()
        """Since when its subscription may have been sent."""

    @property
    def now_ns(self) -> int:
        return self._recorder.now_ns()

    def on_event(self, event: Connected | Disconnected) -> None:
        """Record that the client connected or was disconnected; the callback ``on_event`` of ``connect``."""
        if isinstance(event, Connected):
            self._connect()
        else:
            self.close()

    def close(self) -> None:
        if self._connected:
            self._recorder(self.process, "disconnect")
            self.losses += 1
            self.since_ns = self.now_ns
        self._connected = self._subscribed = False

    def subscribed(self) -> None:
        """Record that the SUB on this connection was answered. Idempotent."""
        self._connect()
        if not self._subscribed:
            self._subscribed = True
            self._recorder(
                self.process, "sub", topic=TOPIC, consumer=self.name, sent_ns=self.since_ns, note=BUFFERED
            )

    def connected(self) -> None:
        """Record the connection of a client that reports no events. Idempotent."""
        self._connect()

    def confirmed(self, name: str, digest: str, result: Result, sent_ns: int) -> None:
        """Record a publish over AMQP: its confirm, which has no id, or "unknown" if none came."""
        self._recorder(self.process, "pub", result, topic=TOPIC, key=name, digest=digest, sent_ns=sent_ns, note=CONFIRM)

    def _connect(self) -> None:
        if not self._connected:
            self._connected = True
            self.process = f"{self.name}.{self.losses + 1}"
            self._recorder(self.process, "connect")

    def published(self, item: Item, sent_ns: int, losses: int, outcome: Receipt | ToymqError) -> bool:
        """Record a publish. ``losses``: the count of lost connections when it was sent. Returns: whether it has to be published
        again."""
        told: dict[str, Any] = {
            "topic": TOPIC, "key": item.name, "digest": digest_of(item.payload), "sent_ns": sent_ns, "seq": item.number,
        }  # fmt: skip
        if isinstance(outcome, Receipt):
            if outcome.duplicate and losses != self.losses:  # the client's own repeat
                self._recorder(self.process, "pub", "unknown", note="repeated by the client", **told)
            self._recorder(self.process, "pub", "dup" if outcome.duplicate else "ok", id=outcome.msg_id, **told)
        else:
            result = _result_of(outcome)
            self._recorder(self.process, "pub", result, note=outcome.code, **told)
            if isinstance(outcome, RequestTimeout | ClientClosed | ConnectionLost):
                return item.number is None
            self.moved = True
            return result == "err" or item.number is None
        self.moved = True
        return False

    def delivered(self, message: Delivery) -> int:
        """Record a delivery. Returns: the count of lost connections at this moment."""
        self.subscribed()
        self.moved = True
        key = message.key or message.payload.partition(b" ")[0]
        self._recorder(
            self.process, "deliver", topic=message.topic, consumer=self.name, key=key.decode(),
            digest=digest_of(message.payload), id=message.id, attempt=message.attempt,
        )  # fmt: skip
        return self.losses

    def settled(self, message: Delivery, choice: Choice, sent_ns: int, losses: int) -> None:
        """Record an ack or nack, as "ok" if the broker is bound by it, else as "unknown". ``losses``: the count of lost
        connections at the delivery; -1: no answer came. A nack binds only on the connection of its delivery, whose loss gives
        the message back; an ack with sync binds on any connection (ADR 0052), an ack without sync never, since its answer is
        not awaited."""
        if choice != "forget":
            bound = losses >= 0 and (choice == "sync" or (choice == "nack" and losses == self.losses))
            self._recorder(
                self.process, "nack" if choice == "nack" else "ack", "ok" if bound else "unknown", topic=message.topic,
                consumer=self.name, id=message.id, sync=choice == "sync" or None, sent_ns=sent_ns,
            )  # fmt: skip

    def stalled(self) -> None:
        """Record that the client made no progress in time."""
        self._recorder(self.process, "stalled", topic=TOPIC, note=f"{self.name} after {self.losses} losses")


def _result_of(error: ToymqError) -> Result:
    """The result to record for a failed publish: "unknown" when its outcome is open."""
    open_ = isinstance(error, RequestTimeout | ClientClosed | ConnectionLost) or error.code in ("STORAGE_FAILED", "INTERNAL")
    return "unknown" if open_ else "err"


def choose(rng: random.Random, habits: Habits, *, calm: bool) -> Choice:
    chance = 1.0 if calm else rng.random()
    shares: tuple[tuple[Choice, float], ...] = (("forget", habits.forget), ("nack", habits.nack), ("sync", habits.sync))
    for choice, share in shares:
        if chance < share:
            return choice
        chance -= share
    return "ack"


class Surroundings(NamedTuple):
    """What the harness provides to its users."""

    recorder: Recorder
    url: str
    amqp: Callable[[], str]
    """URL for AMQP; empty while the broker does not run."""
    token: str
    habits: Habits
    calm: Callable[[], bool]
    ready: Callable[[], Awaitable[None]]
    subscribed: Callable[[str, str], None]
    workers: bool = False
    """Whether the broker is several processes."""


class User(ABC):
    """A program with one real client; it lives as long as ``run`` runs."""

    def __init__(self, where: Surroundings, diary: Diary, rng: random.Random) -> None:
        self.diary = diary
        self.client: Client | sync.Client | None = None
        """The client, once connected."""
        self._where = where
        self._rng = rng

    @abstractmethod
    async def run(self) -> None:
        """Run the user: a publisher ends when the faults are over, a subscriber when it is cancelled."""

    def cut(self) -> None:
        """Cut the client's connections like a network fault; it reconnects by itself."""
        links: tuple[Link | BlockingLink, ...] = () if self.client is None else tuple(self.client._links)
        for link in links:
            if (number := link.descriptor) is not None and number >= 0:
                with suppress(OSError), socket.socket(fileno=os.dup(number)) as connection:
                    connection.shutdown(socket.SHUT_RDWR)

    def tell_each_loss(self) -> None:
        """With several workers: let the diary know of each lost connection. The client has one connection to each worker, and
        reports only an outage, from the first loss until all connections are back; but each loss gives back the messages
        delivered over that connection. Subscriptions on other connections go on."""
        if not self._where.workers or self.client is None:
            return
        outages, diary = self.client._outages, self.diary
        down = outages.down

        def told(link: Any, address: Address, reason: ToymqError) -> None:
            since_ns, losses = diary.since_ns, diary.losses
            down(link, address, reason)
            diary.close()
            if diary.losses == losses:  # another one is lost already: what is repeated over this one may be stored, too
                diary.losses += 1
            if not link.conversation.feeds:
                diary.since_ns = since_ns

        outages.down = told  # type: ignore[method-assign]

    def owes(self) -> int:
        """The number of confirmed messages that the user has not seen yet, for a user that knows which are confirmed; else
        0."""
        return 0

    @property
    def publishes(self) -> bool:
        return isinstance(self, AsyncPublisher | BlockingPublisher)

    def _client(self) -> dict[str, Any]:
        return {
            "timeout_s": TIMEOUT_S, "wait_s": TIMEOUT_S, "backoff_max_s": BACKOFF_MAX_S, "on_event": self.diary.on_event,
            "random": self._rng, "connect_timeout_s": 5.0,
        }  # fmt: skip


class AsyncPublisher(User):
    def __init__(self, where: Surroundings, diary: Diary, rng: random.Random, source: Iterator[Item]) -> None:
        super().__init__(where, diary, rng)
        self._source = source

    async def run(self) -> None:
        await self._where.ready()
        async with connect(self._where.url, **self._client()) as mq, asyncio.TaskGroup() as tasks:
            self.client = mq
            self.tell_each_loss()
            for _ in range(AT_A_TIME):
                tasks.create_task(self._publish(mq))
        self.diary.close()

    async def _publish(self, mq: Client) -> None:
        again: Item | None = None
        while again is not None or not self._where.calm():
            item = again or next(self._source)
            sent_ns, losses = self.diary.now_ns, self.diary.losses
            outcome: Receipt | ToymqError
            try:
                outcome = await mq.pub(TOPIC, item.payload, key=item.name if item.number is None else None)
            except ToymqError as error:
                outcome = error
            again = item if self.diary.published(item, sent_ns, losses, outcome) else None
            await asyncio.sleep(0.05 if again else self._rng.random() * 2 * AT_A_TIME / RATE)


class AsyncSubscriber(User):
    def __init__(self, where: Surroundings, diary: Diary, rng: random.Random, window: int) -> None:
        super().__init__(where, diary, rng)
        self._window = window

    async def run(self) -> None:
        where, diary = self._where, self.diary
        self.client = mq = await connect(where.url, **self._client())
        self.tell_each_loss()
        try:
            messages = await mq.sub(TOPIC, diary.name, window=self._window)
            diary.subscribed()
            where.subscribed(TOPIC, diary.name)
            async for message in messages:
                losses = diary.delivered(message)
                await asyncio.sleep(0)
                sent_ns = diary.now_ns
                choice = choose(self._rng, where.habits, calm=where.calm())
                try:
                    if choice in ("ack", "sync"):
                        await message.ack(sync=choice == "sync")
                    elif choice == "nack":
                        await message.nack(0)
                except ToymqError:  # a full disk, a time-out
                    losses = -1
                diary.settled(message, choice, sent_ns, losses)
        finally:
            await mq.close()
            diary.close()


class _InThread(User):
    """A user whose blocking code runs in a thread, which checks from time to time whether it has to end."""

    async def _in_thread(self, work: Callable[[threading.Event], None]) -> None:
        """Run ``work`` in a thread; it must return soon after the event, its argument, is set."""
        ending = threading.Event()
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def tell(error: BaseException | None) -> None:
            if not ended.done():
                ended.set_result(None) if error is None else ended.set_exception(error)

        def run() -> None:
            problem: BaseException | None = None
            try:
                work(ending)
            except BaseException as error:  # noqa: BLE001 (raised where it is awaited)
                problem = error
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(tell, problem)

        # A daemon: a stalled thread must not keep the program alive.
        threading.Thread(target=run, name="toymq-chaos user", daemon=True).start()
        try:
            await asyncio.shield(ended)
        finally:
            ending.set()
            await asyncio.wait((ended,), timeout=ENDING_S)


class BlockingPublisher(_InThread):
    def __init__(self, where: Surroundings, diary: Diary, rng: random.Random, source: Iterator[Item]) -> None:
        super().__init__(where, diary, rng)
        self._source = source

    async def run(self) -> None:
        await self._where.ready()
        await self._in_thread(self._work)

    def _work(self, ending: threading.Event) -> None:
        again: Item | None = None
        with sync.connect(self._where.url, **self._client()) as mq:
            self.client = mq
            self.tell_each_loss()
            while not ending.is_set() and (again is not None or not self._where.calm()):
                item = again or next(self._source)
                sent_ns, losses = self.diary.now_ns, self.diary.losses
                outcome: Receipt | ToymqError
                try:
                    outcome = mq.pub(TOPIC, item.payload, key=item.name if item.number is None else None)
                except ToymqError as error:
                    outcome = error
                again = item if self.diary.published(item, sent_ns, losses, outcome) else None
                ending.wait(0.05 if again else self._rng.random() * 2 / RATE)
        self.diary.close()


class BlockingSubscriber(_InThread):
    def __init__(self, where: Surroundings, diary: Diary, rng: random.Random, window: int) -> None:
        super().__init__(where, diary, rng)
        self._window = window

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        await self._in_thread(lambda ending: self._work(ending, loop))

    def _work(self, ending: threading.Event, loop: asyncio.AbstractEventLoop) -> None:
        where, diary = self._where, self.diary
        self.client = mq = sync.connect(where.url, **self._client())
        self.tell_each_loss()
        try:
            messages = mq.sub(TOPIC, diary.name, window=self._window)
            diary.subscribed()
            loop.call_soon_threadsafe(where.subscribed, TOPIC, diary.name)
            while not ending.is_set():
                with suppress(RequestTimeout):
                    self._handle(messages.next(LOOK_S))
        finally:
            mq.close()
            diary.close()

    def _handle(self, message: sync.Message) -> None:
        diary = self.diary
        losses = diary.delivered(message)
        sent_ns = diary.now_ns
        choice = choose(self._rng, self._where.habits, calm=self._where.calm())
        try:
            if choice in ("ack", "sync"):
                message.ack(sync=choice == "sync")
            elif choice == "nack":
                message.nack(0)
        except ToymqError:
            losses = -1
        diary.settled(message, choice, sent_ns, losses)


def users(where: Surroundings, seed: int, *, numbered: bool) -> list[User]:
    """Make all users of a run except the AMQP ones; ``numbered``: some publishes have no key."""

    def of(name: str) -> tuple[Surroundings, Diary, random.Random]:
        return where, Diary(where.recorder, name), random.Random(f"user {name} {seed}")

    def source(name: str) -> Iterator[Item]:
        return items(name, random.Random(f"items of {name} {seed}"), numbered=numbered)

    return [
        AsyncPublisher(*of(f"{ASYNCIO}-pub"), source(f"{ASYNCIO}-pub")),
        BlockingPublisher(*of(f"{BLOCKING}-pub"), source(f"{BLOCKING}-pub")),
        *(AsyncSubscriber(*of(f"{ASYNCIO}-{window}"), window) for window in WINDOWS),
        BlockingSubscriber(*of(f"{BLOCKING}-{BLOCKING_WINDOW}"), BLOCKING_WINDOW),
    ]
