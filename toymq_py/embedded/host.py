"""A candidate to serve a data directory: it serves when no other process does, and else waits until that one is gone.

Contract: clients.md (``toymq.open``), ADR 0017. Owns a thread with a loop of its own, the socket in the directory, and while
it serves the broker. Knows nothing of the client that opened the directory.

    look for the server ──there──► stay connected until it is gone ──┐
      ▲        └─not there──► take LOCK ──ours──► serve until closed │
      │                          └─another process's, not ready yet: wait a moment
      └──────────────────────────────────────────────────────────────┘
"""

import asyncio
import atexit
import logging
import os
import socket
import stat
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from random import Random

from toymq import sockets
from toymq.backoff import Backoff
from toymq_py.clock import SystemClock
from toymq_py.config.options import BrokerOptions
from toymq_py.errors import ConfigError, DataDirectoryError, DirectoryLocked, DirectoryLost
from toymq_py.runtime.broker_loop import opened_broker
from toymq_py.server import Server
from toymq_py.storage.dirlock import not_there
from toymq_py.storage.fs import RealFileSystem

logger = logging.getLogger("toymq_py.embedded")

SOCKET_NAME = "toymq.sock"
"""In the directory, beside ``LOCK``; only its holder makes and removes it."""
EMBEDDED = BrokerOptions(max_connections=512, shutdown_timeout_ms=250)
"""How a directory is served unless told. Connections are limited: of the 1,024 descriptors that a process may usually
have, half are its own. A server that leaves does not let the others wait for handlers: what these ack
later, the next server takes."""
RETRY_MIN_S, RETRY_MAX_S = 0.01, 0.2
"""Bounds of the random wait before another look: a dead server is replaced within a second."""
SILENT_S = 1.0
"""A start takes less, as a rule: whoever waits longer for one is told."""
CLOSE_S = 5.0
"""How long closing waits for the thread; only a disk that hangs takes longer."""


class _Watch(asyncio.Protocol):
    """A connection on which nothing is said: its end is the news."""

    def __init__(self, wake: asyncio.Event) -> None:
        self._wake = wake
        self.ended = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True
        self._wake.set()


class Candidate:
    """From ``start`` to ``stop``. All but the constructor and these two happens in its own thread."""

    def __init__(self, path: str | os.PathLike[str], options: BrokerOptions | None, wait_s: float) -> None:
        """
        Args:
            path: of the data directory; made when it is not there, its parent is not.
            options: to serve with; ``data_dir`` is left alone.
            wait_s: how long another process may hold the directory without answering, before that is an error.

        Raises: ConfigError.
        """
        options = EMBEDDED if options is None else options
        if not isinstance(options, BrokerOptions):
            raise TypeError(f"options is a toymq_py.config.options.BrokerOptions or None, not {options!r:.100}")
        if options.data_dir != EMBEDDED.data_dir:
            raise ConfigError("the directory to open is the path; leave data_dir of the options alone")
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"path is a str or a Path of a directory, not {path!r:.100}")
        if not os.fspath(path):
            raise ConfigError("path is empty: name the directory")
        self._options = replace(options, data_dir=os.path.abspath(path))  # noqa: PTH100 (no Path is needed)
        self._wait_s = wait_s
        self.socket_path = f"{self._options.data_dir}/{SOCKET_NAME}"
        self.forked = False
        """This is a child of the process that opened the directory: the thread, the lock and the connections are not ours."""
        self.ready: Future[None] = _promise()
        """Wait until a process serves the directory. Raises: DirectoryLocked, DataDirectoryError."""
        self.ended: Future[None] = _promise()
        """The thread is done and the directory is given back."""
        self._closing = False
        self._inode: tuple[int, int] | None = None  # of the directory that was opened
        self._server: Server | None = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None

    @property
    def started(self) -> bool:
        return self._thread is not None

    @property
    def lock_path(self) -> str:
        return f"{self._options.data_dir}/LOCK"

    def start(self) -> None:
        """Begin; ``ready`` tells what came of it. Idempotent."""
        if self._thread is None:
            runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)  # a given factory leaves our caller's loop alone
            self._loop = runner.get_loop()
            self._thread = threading.Thread(target=self._run, args=(runner,), name="toymq-embedded", daemon=True)
            _candidates.add(self)
            atexit.register(self.close)
            self._thread.start()

    def stop(self) -> None:
        """Give the directory back, soon: ``ended`` tells when. Idempotent; nothing happens in the child of a fork."""
        if self._thread is None or self.forked:
            return
        assert self._loop is not None
        with suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._stop)

    def close(self) -> None:
        """``stop``, and wait for it."""
        self.stop()
        if self._thread is not None and not self.forked:
            self._thread.join(CLOSE_S)

    def _stop(self) -> None:
        self._closing = True
        if self._wake is not None:
            self._wake.set()
        if self._server is not None:
            self._server.stop()

    # -- in the thread

    def _run(self, runner: asyncio.Runner) -> None:
        try:
            with runner:
                runner.run(self._stand())
        except Exception as error:
            logger.exception("%s: a bug in the embedded broker", self._options.data_dir)
            if not self.ready.done():
                self.ready.set_exception(DataDirectoryError(f"a bug in the embedded broker: {error!r}"))
        finally:
            atexit.unregister(self.close)
            self.ended.set_result(None)

    async def _stand(self) -> None:
        """Serve or watch until closed. Ends early when the directory cannot be had at all, was removed or replaced, or with a
        bug: others then serve."""
        loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        give_up_at, say_at, said = loop.time() + self._wait_s, loop.time() + SILENT_S, False
        backoff = Backoff(RETRY_MIN_S, RETRY_MAX_S, Random())
        while not self._closing:
            if await self._watch():
                backoff.reset()
                continue
            try:
                await self._serve()
            except DirectoryLost as error:  # a new one in its place would look as if nothing had ever been stored
                logger.critical("%s", error)
                return
            except (DirectoryLocked, DataDirectoryError, OSError) as error:
                locked = isinstance(error, DirectoryLocked)
                other = isinstance(error, DirectoryLocked) and (error.address or error.command) is not None  # not one of us
                if not self.ready.done() and (other or not locked or loop.time() >= give_up_at):
                    self.ready.set_exception(self._explained(error))
                    return
                if locked and not self.ready.done() and not said and loop.time() >= say_at:
                    said = True
                    logger.warning("%s, and it does not answer there yet: waiting, at most %g s", error, self._wait_s)
                if not locked:
                    logger.error("%s: cannot serve it: %s", self._options.data_dir, error)  # noqa: TRY400 (no bug of ours)
            if not self._closing:
                await self._sleep(backoff.next_s())

    def _explained(self, error: Exception) -> Exception:
        data_dir = self._options.data_dir
        if isinstance(error, DirectoryLocked):
            if error.address is not None or error.command is not None:
                return error
            error.add_note(f"and nothing answers at {self.socket_path}: a broker that runs by itself is reached by its address")
        elif isinstance(error, OSError):
            wrapped = DataDirectoryError(f"cannot serve {data_dir}: {error.strerror or error}")
            wrapped.__cause__ = error
            return wrapped
        return error

    async def _watch(self) -> bool:
        """Until the server is gone. Returns: False when there was none."""
        assert self._wake is not None
        self._wake.clear()
        watch = _Watch(self._wake)
        try:
            connection = sockets.connect_unix(self.socket_path)
            transport, _ = await asyncio.get_running_loop().create_unix_connection(lambda: watch, sock=connection)
        except OSError:
            return False
        self._tell_ready()
        while not watch.ended and not self._closing:
            await self._wake.wait()
            self._wake.clear()
        transport.abort()
        return True

    async def _serve(self) -> None:
        """Until closed. Raises: DirectoryLocked, DataDirectoryError, OSError."""
        loop, clock = asyncio.get_running_loop(), SystemClock()
        data_dir = self._options.data_dir
        if self._inode is not None and (reason := not_there(RealFileSystem(), data_dir, self._inode)) is not None:
            raise DirectoryLost(f"{reason}: open it again")
        with opened_broker(self._options, clock, loop) as broker, self._listener() as listener:
            self._server = server = Server(broker, clock, loop)
            broker.on_lost = lambda: server.stop(at_once=True)
            loop.call_soon(self._tell_ready)  # by then it listens
            logger.info("%s: served by this process (pid %d)", data_dir, os.getpid())
            try:
                await server.run([listener])
            finally:
                self._server = None
            if broker.lost is not None:
                raise broker.lost

    @contextmanager
    def _listener(self) -> Iterator[socket.socket]:
        """Assumes that ``LOCK`` is held: whatever socket is there belongs to a dead process."""
        with suppress(FileNotFoundError):
            os.unlink(self.socket_path)  # noqa: PTH108 (no Path is needed)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.setblocking(False)
            with sockets.short_name(self.socket_path) as name:
                listener.bind(name)
            made = RealFileSystem().inode(self.socket_path)
            try:
                yield listener
            finally:
                if not_there(RealFileSystem(), self.socket_path, made) is None:  # else it is another directory's by now
                    with suppress(OSError):
                        os.unlink(self.socket_path)  # noqa: PTH108 (no Path is needed)

    def _tell_ready(self) -> None:
        if self._inode is None:
            with suppress(OSError):
                self._inode = RealFileSystem().inode(self._options.data_dir)
        if not self.ready.done():
            self.ready.set_result(None)

    async def _sleep(self, delay_s: float) -> None:
        """Or until closed."""
        assert self._wake is not None
        with suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._wake.wait()


def _promise() -> Future[None]:
    """That a cancelled waiter does not cancel."""
    future: Future[None] = Future()
    future.set_running_or_notify_cancel()
    return future


# -- after a fork

_candidates: "weakref.WeakSet[Candidate]" = weakref.WeakSet()


def _leave_to_parent() -> None:
    """In the child of a fork: let go of the directory. Its copies of the descriptors would keep the lock and the connections
    alive when the parent is killed, and no other process could take over.

    Each number stays taken, by the null device: the objects that think they own it may close it once more.
    """
    candidates = list(_candidates)
    if not candidates:
        return
    locks = set()
    for candidate in candidates:
        candidate.forked = True
        for path in (candidate.lock_path, os.path.dirname(candidate.lock_path)):  # noqa: PTH120 (no Path is needed)
            with suppress(OSError):
                found = os.stat(path)  # noqa: PTH116 (no Path is needed)
                locks.add((found.st_dev, found.st_ino))
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in map(int, os.listdir("/dev/fd")):  # noqa: PTH208 (numbers)
        with suppress(OSError):
            found = os.fstat(number)
            if (found.st_dev, found.st_ino) in locks or (stat.S_ISSOCK(found.st_mode) and _is_of_directory(number)):
                os.dup2(nothing, number, inheritable=False)
    os.close(nothing)


def _is_of_directory(number: int) -> bool:
    """Whether it is a socket of a served directory: its listener, or either end of a connection. Raises: OSError."""
    connection = socket.socket(fileno=number)
    try:
        names = [connection.getsockname()]
        with suppress(OSError):
            names.append(connection.getpeername())
        return connection.family == socket.AF_UNIX and any(os.fsdecode(name).endswith(f"/{SOCKET_NAME}") for name in names)
    finally:
        connection.detach()


os.register_at_fork(after_in_child=_leave_to_parent)
