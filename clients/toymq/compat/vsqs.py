"""The interface of vsqs 0.3 on a directory that its own processes serve (``toymq.open``).

Contract: dialects.md. A queue is a topic with one shared consumer: ``receive`` leases the oldest message that is ready,
``delete`` acks it. The module runs a toymq client on an event loop in a thread of its own, so that any thread may call at any
time.

What differs from vsqs: ids are "0", "1", … and not times; a capacity belongs to the queue and not to the ``Queue`` object; a
lease ends early when the process that serves the directory ends; ``receive(timeout=0)`` looks once; ``delete`` works from any
``Queue`` object.
"""

import asyncio
import os
import secrets
import threading
import weakref
from collections.abc import Coroutine
from concurrent.futures import Future
from random import Random
from typing import Any, TypeVar

import toymq
from toymq import arguments
from toymq.backoff import Backoff
from toymq.client import Client
from toymq.errors import ClientClosed
from toymq.message import to_ranges
from toymq_py.errors import ConnectionLost, NoSuchConsumer, QueueFull

T = TypeVar("T")
CONSUMER = "vsqs"
WAIT_S = 3600.0
"""The wait of one PULL; a ``receive`` that waits longer asks again."""
VISIBILITY_S_MIN = 0.001
"""The shortest visibility. vsqs takes 0, which is a lease that has ended; the broker's clock counts milliseconds."""
RETRY_MIN_S, RETRY_MAX_S = 0.005, 0.1
"""Bounds of the random wait of a publisher before it asks again whether there is room: the broker does not report it."""
PASSING_COUNT, PASSING_S = 256, 10.0
"""Most messages at once, and the longest time, that are leased to reach one that was not received yet."""
SETTINGS = {"max_attempts": 0, "retain_acked_for": 0}
"""The settings of queues: vsqs has no dead letters, and a deleted message is gone."""
CLOSE_S = 10.0


class QueueException(Exception):
    """Base of the errors that this module raises; the broker's own errors are ``toymq.ToymqError``."""


class QueueFullException(QueueException):
    """The queue stayed at its capacity for the whole time-out of ``publish``."""


class QueueManager:
    """The queues of a directory, which any number of processes may have open. After a fork, open another manager in the
    child."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """
        Args:
            path: the directory, which is created if it does not exist.

        Raises: DirectoryLocked (a ``toymq serve`` has it), DataDirectoryError, ConnectFailed.
        """
        os.makedirs(path, exist_ok=True)  # noqa: PTH103 (no Path is needed)
        self._engine = _Engine(path)
        self._finalizer = weakref.finalize(self, self._engine.close)  # also when the program ends

    def get_queue(self, name: str, capacity: int | None = None) -> "Queue":
        """Return the queue of that name, created if it does not exist.

        Args:
            name: the queue's name, which must be valid as a topic name.
            capacity: most messages in the queue, those in flight included; ``publish`` waits for room. None keeps the queue's
                present limit; a new queue has none.

        Raises: BadName; BadArgument for a capacity below 1; QueueException.
        """
        self._engine.call(self._engine.arrange(name, capacity))
        return Queue(self, name)

    def close(self) -> None:
        """Leave the directory; another process that has it open serves it from then on. Idempotent."""
        self._finalizer()


class Queue:
    """A queue, made by ``QueueManager.get_queue``. Any thread may use it."""

    def __init__(self, manager: QueueManager, name: str) -> None:
        self.manager = manager  # which is open for as long as one of its queues is used
        self._engine = manager._engine
        self._name = name

    def publish(self, data: bytes, timeout: float | None = None) -> str:
        """Store a message, and return its id. When this returns, the message is on the disk.

        Args:
            timeout: seconds to wait while the queue is full; None waits for ever, 0 does not.

        Raises: QueueFullException, QueueException, ToymqError; TypeError for what is not bytes.
        """
        if not isinstance(data, bytes):
            raise TypeError(f"a message is bytes, not {type(data).__name__}")
        return self._engine.call(self._engine.publish(self._name, data, timeout))

    def receive(self, visibility_timeout: float = 10, timeout: float | None = None) -> tuple[str, bytes] | tuple[None, None]:
        """Lease the oldest message that is not leased, and return its id and payload. Other receivers do not get it until it is
        deleted or its visibility timeout is over.

        Args:
            visibility_timeout: seconds of the lease.
            timeout: seconds to wait for a message; None waits for ever, 0 looks once.

        Returns: (None, None) when none came in time.

        Raises: QueueException, ToymqError.
        """
        return self._engine.call(self._engine.receive(self._name, visibility_timeout, timeout))

    def delete(self, m_id: str) -> None:
        """Delete a message; when this returns, the deletion is on the disk. Any ``Queue`` object of this queue may delete it,
        and to delete it again is harmless.

        To delete a message that was never received, this leases the messages before it for a moment and gives them back: a
        concurrent ``receive`` may get a later message instead.

        Raises: QueueException (the text is not an id), ToymqError.
        """
        text = str(m_id)
        if not (text.isascii() and text.isdigit()):
            raise QueueException(f"invalid message id {m_id!r}: pass one that publish or receive returned")
        self._engine.call(self._engine.delete(self._name, int(text)))

    def size(self) -> int:
        """Messages that are not deleted, those in flight included. Raises: QueueException, ToymqError."""
        return self._engine.call(self._engine.size(self._name))

    def close(self) -> None:
        """Do nothing: the manager owns the connection."""


class _Engine:
    """A toymq client of the directory, on an event loop in a thread of its own. Other threads use ``call``, which runs the
    coroutine methods on that loop, and ``close``."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._pid = os.getpid()
        self._closed = False
        self._opened: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(path,), name="toymq-vsqs", daemon=True)
        self._thread.start()
        self._opened.result()

    def _run(self, path: str | os.PathLike[str]) -> None:
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            runner.run(self._serve(path))

    async def _serve(self, path: str | os.PathLike[str]) -> None:
        self._loop = asyncio.get_running_loop()
        self._leave = asyncio.Event()
        try:
            self._mq: Client = await toymq.open(path, name="vsqs")
        except BaseException as error:  # noqa: BLE001 (raised by the constructor)
            self._opened.set_exception(error)
            return
        self._opened.set_result(None)
        await self._leave.wait()
        await self._mq.close()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the engine's loop and wait for its result. If the caller is interrupted, the coroutine is
        cancelled, and no message is lost."""
        if self._closed or os.getpid() != self._pid:
            work.close()
            raise QueueException("this QueueManager is closed" if self._closed else
                                 "this QueueManager was opened before a fork: open another one in the child")  # fmt: skip
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        if not self._closed and os.getpid() == self._pid:
            self._closed = True
            self._loop.call_soon_threadsafe(self._leave.set)
            self._thread.join(CLOSE_S)

    # -- on the loop

    async def arrange(self, name: str, capacity: int | None) -> None:
        await self._mq.create(name)
        wanted = SETTINGS if capacity is None else {**SETTINGS, "backlog_max_messages": capacity}
        found = await self._mq.config(name)
        if any(found.get(setting) != value for setting, value in wanted.items()):
            await self._mq.config(name, wanted)

    async def publish(self, name: str, data: bytes, timeout: float | None) -> str:  # noqa: ASYNC109 (vsqs names it)
        deadline = self._deadline(timeout)
        backoff = Backoff(RETRY_MIN_S, RETRY_MAX_S, Random())
        key = secrets.token_hex(8)  # not the client's number: after a lost answer that would not tell which id is its own
        while True:
            try:
                return str((await self._mq.pub(name, data, key=key)).msg_id)
            except QueueFull as error:
                left_s = RETRY_MAX_S if deadline is None else deadline - self._loop.time()
                if left_s <= 0:
                    raise QueueFullException(str(error)) from error
            await asyncio.sleep(min(backoff.next_s(), left_s))

    async def receive(
        self, name: str, visibility_s: float, timeout: float | None  # noqa: ASYNC109 (vsqs names it)
    ) -> tuple[str, bytes] | tuple[None, None]:
        visibility_s = max(arguments.number_of_seconds("visibility_timeout", visibility_s), VISIBILITY_S_MIN)
        deadline = self._deadline(timeout)
        while True:
            left_s = WAIT_S if deadline is None else max(deadline - self._loop.time(), 0.0)
            try:
                for message in await self._mq.pull(name, CONSUMER, wait=min(left_s, WAIT_S), visibility=visibility_s):
                    return str(message.id), message.payload
            except ClientClosed:
                raise
            except ConnectionLost:
                continue  # another process serves now
            if deadline is not None and self._loop.time() >= deadline:
                return None, None

    def _deadline(self, timeout: float | None) -> float | None:
        """Return the time of the loop's clock at which a timeout ends; None without one. Raises: TypeError, BadArgument."""
        return None if timeout is None else self._loop.time() + arguments.number_of_seconds("timeout", timeout)

    async def delete(self, name: str, msg_id: int) -> None:
        while True:
            try:
                return await self._delete(name, msg_id)
            except ClientClosed:
                raise
            except ConnectionLost:
                continue  # another process serves now; removing twice is harmless

    async def _delete(self, name: str, msg_id: int) -> None:
        try:
            if await self._mq.ack(name, CONSUMER, [(msg_id, msg_id)], sync=True):
                return
        except NoSuchConsumer:
            pass  # no message was received
        first, end = await self._mq.offsets(name)
        if not first <= msg_id < end or msg_id <= await self._floor(name):
            return
        held: list[int] = []
        try:
            while not held or held[-1] < msg_id:
                found = await self._mq.pull(name, CONSUMER, PASSING_COUNT, visibility=PASSING_S)
                if not found:
                    break
                held += [message.id for message in found]
            if msg_id in held:
                await self._mq.ack(name, CONSUMER, [(msg_id, msg_id)], sync=True)
        finally:
            if held:
                await self._mq.nack(name, CONSUMER, to_ranges(held), delay=0)  # which leaves alone what is acked

    async def _floor(self, name: str) -> int:
        """Return the highest id up to which all messages of a queue are deleted; -1 if there is none."""
        for consumer in (await self._mq.describe(name))["consumers"]:
            if consumer["consumer"] == CONSUMER and consumer["has_acked"]:
                return int(consumer["last_acked"])
        return -1

    async def size(self, name: str) -> int:
        found = await self._mq.describe(name)
        unacked = [each["backlog"] + each["scheduled"] for each in found["consumers"] if each["consumer"] == CONSUMER]
        return int(unacked[0] if unacked else found["messages"])
