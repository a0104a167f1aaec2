"""The embedded host: serves a data directory, or stands by while another process serves it.

Contract: clients.md (``toymq.open``), ADR 0017. Owns a thread with its own event loop, the socket in the directory, and the
broker while it serves. Does not know the client that opened the directory.

    connect to the socket ──connected──► stand by until it closes ────┐
      ▲        └─refused──► take LOCK ──taken──► serve until closed   │
      │                        └─locked, server not ready: back off   │
      └───────────────────────────────────────────────────────────────┘
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
from functools import partial
from random import Random

from toymq import sockets
from toymq.backoff import Backoff
from toymq_py.broker import Broker
from toymq_py.clock import SystemClock
from toymq_py.config.options import BrokerOptions
from toymq_py.errors import ConfigError, DataDirectoryError, DirectoryLocked, DirectoryLost
from toymq_py.runtime.broker_loop import opened_broker
from toymq_py.server import Server
from toymq_py.storage.dirlock import not_there
from toymq_py.storage.fs import FILE_MODE, RealFileSystem
from toymq_py.threads import start_thread

logger = logging.getLogger("toymq_py.embedded")

SOCKET_NAME = "toymq.sock"
"""The socket's name in the directory, beside ``LOCK``; only the lock's holder makes and removes it."""
EMBEDDED = BrokerOptions(max_connections=512, shutdown_timeout_ms=250)
"""Default options. ``max_connections`` leaves half of the usual 1,024 descriptors to the application. The shutdown is short:
the next server takes the acks that come later."""
RETRY_MIN_S, RETRY_MAX_S = 0.01, 0.2
"""Bounds of the random back-off: a dead server is replaced within a second."""
SILENT_S = 1.0
"""A wait is logged after so long; a start usually takes less."""
CLOSE_S = 5.0
"""How long ``close`` waits for the thread; only a disk that hangs takes longer."""


class _StandbyConnection(asyncio.Protocol):
    """A silent connection to the serving process; it closes when that process is gone."""

    def __init__(self, wake: asyncio.Event) -> None:
        self._wake = wake
        self.ended = False

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended = True
        self._wake.set()


class EmbeddedHost:
    """Serves or stands by from ``start`` to ``stop``, in its own thread."""

    def __init__(self, path: str | os.PathLike[str], options: BrokerOptions | None, wait_s: float) -> None:
        """
        Args:
            path: the data directory, which is created if it is missing, but not its parent.
            options: the broker's, without ``data_dir``.
            wait_s: how long another process may hold the lock without answering before it is an error.

        Raises: ConfigError.
        """
        options = EMBEDDED if options is None else options
        if not isinstance(options, BrokerOptions):
            raise TypeError(f"invalid options {options!r:.100}: pass a toymq_py.config.options.BrokerOptions or None")
        if options.data_dir != EMBEDDED.data_dir:
            raise ConfigError(f"options has data_dir {options.data_dir!r}: leave it out, the directory is the path")
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"invalid path {path!r:.100}: pass the str or Path of a directory")
        name = os.fsdecode(path)
        if not name:
            raise ConfigError("path is empty: name the directory")
        if name.startswith(("toymq://", "toymqs://", "unix:", "http://", "https://")):  # the rest may have a token
            raise ConfigError(f"path is the URL of a broker, {name.partition(':')[0]}:…, not a directory: use connect")
        self._options = replace(options, data_dir=os.path.abspath(path))  # noqa: PTH100 (no Path is needed)
        self._wait_s = wait_s
        self.socket_path = f"{self._options.data_dir}/{SOCKET_NAME}"
        self.forked = False
        """Whether this process is a fork of the one that opened the directory: thread, lock and connections belong to that
        one."""
        self.ready: Future[None] = _promise()
        """Done when a process serves the directory. Raises: DirectoryLocked, DataDirectoryError."""
        self.ended: Future[None] = _promise()
        """Done when the thread has ended and the lock is free."""
        self._closing = False
        self._inodes: dict[str, tuple[int, int]] = {}  # of the directory that was opened, and of its topics
        self._lost: str | None = None  # found by the broker that this process served
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

    def lost(self) -> DirectoryLost | None:
        """Why the directory at the path is not the one that was opened; None while it is. Thread-safe, as clients ask, too."""
        reasons = (not_there(RealFileSystem(), path, inode) for path, inode in self._inodes.items())
        reason = self._lost or next(filter(None, reasons), None)
        return None if reason is None else DirectoryLost(f"{reason}: open it again")

    def start(self) -> None:
        """Start the thread; the caller then waits for ``ready``. Idempotent. Raises: ConfigError (no thread can be started)."""
        if self._thread is None:
            runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)  # a given factory leaves our caller's loop alone
            self._loop = runner.get_loop()
            try:
                self._thread = start_thread(partial(self._thread_main, runner), "toymq-embedded")
            except OSError as error:
                runner.close()
                raise ConfigError(f"{self._options.data_dir}: {error.strerror}") from error
            _hosts.add(self)
            atexit.register(self.close)

    def stop(self) -> None:
        """Ask the thread to end; the caller then waits for ``ended``. Idempotent; does nothing in a forked child."""
        if self._thread is None or self.forked:
            return
        assert self._loop is not None
        with suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._stop)

    def close(self) -> None:
        """Stop, and wait until the thread has ended."""
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

    def _thread_main(self, runner: asyncio.Runner) -> None:
        try:
            with runner:
                runner.run(self._serve_or_stand_by())
        except Exception as error:
            logger.exception("%s: a bug in the embedded broker", self._options.data_dir)
            if not self.ready.done():
                self.ready.set_exception(DataDirectoryError(f"a bug in the embedded broker: {error!r}"))
        finally:
            atexit.unregister(self.close)
            self.ended.set_result(None)

    async def _serve_or_stand_by(self) -> None:
        """Serve or stand by until closed. Ends early with an error that a retry cannot mend, and when the directory was removed
        or replaced."""
        loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        give_up_at, warn_at, warned = loop.time() + self._wait_s, loop.time() + SILENT_S, False
        backoff = Backoff(RETRY_MIN_S, RETRY_MAX_S, Random())
        while not self._closing:
            if (lost := self.lost()) is not None:  # a new one in its place would look as if nothing had ever been stored
                logger.critical("%s", lost)
                return
            if await self._stand_by():
                backoff.reset()
                continue
            try:
                await self._serve()
            except DirectoryLost:
                continue
            except (DirectoryLocked, DataDirectoryError, OSError) as error:
                locked = isinstance(error, DirectoryLocked)
                standalone = isinstance(error, DirectoryLocked) and (error.address or error.command) is not None
                if not self.ready.done() and (standalone or not locked or loop.time() >= give_up_at):
                    self.ready.set_exception(self._explained(error))
                    return
                if locked and not self.ready.done() and not warned and loop.time() >= warn_at:
                    warned = True
                    logger.warning("%s and does not answer yet: waiting up to %g s", error, self._wait_s)
                if not locked:
                    logger.error("%s: cannot serve it: %s", self._options.data_dir, error)  # noqa: TRY400 (no bug of ours)
            if not self._closing:
                await self._sleep(backoff.next_s())

    def _explained(self, error: Exception) -> Exception:
        data_dir = self._options.data_dir
        if isinstance(error, DirectoryLocked):
            if error.address is not None or error.command is not None:
                return error
            error.add_note(f"nothing answers at {self.socket_path}: connect to a broker that runs by itself by its address")
        elif isinstance(error, OSError):
            wrapped = DataDirectoryError(f"cannot serve {data_dir}: {error.strerror or error}")
            wrapped.__cause__ = error
            return wrapped
        return error

    async def _stand_by(self) -> bool:
        """Stay connected to the serving process until it is gone. Returns: False when there is none."""
        assert self._wake is not None
        self._wake.clear()
        standby = _StandbyConnection(self._wake)
        try:
            connection = sockets.connect_unix(self.socket_path)
            transport, _ = await asyncio.get_running_loop().create_unix_connection(lambda: standby, sock=connection)
        except OSError:
            return False
        self._tell_ready()
        while not standby.ended and not self._closing:
            await self._wake.wait()
            self._wake.clear()
        transport.abort()
        return True

    async def _serve(self) -> None:
        """Serve until closed. Raises: DirectoryLocked, DataDirectoryError, OSError; DirectoryLost, which ``lost`` returns from
        then on."""
        loop, clock = asyncio.get_running_loop(), SystemClock()
        data_dir = self._options.data_dir
        with opened_broker(self._options, clock, loop) as broker, self._listener() as listener:
            self._server = server = Server(broker, clock, loop)
            broker.on_lost = partial(self._lose, broker, server)
            loop.call_soon(self._tell_ready)  # by then it listens
            logger.info("%s: served by this process (pid %d)", data_dir, os.getpid())
            try:
                await server.run([listener])
            finally:
                self._server = None
            if broker.lost is not None:
                raise broker.lost

    def _lose(self, broker: Broker, server: Server) -> None:
        """Note that the directory is lost, before connections end, so that clients that reconnect get the reason."""
        self._lost = broker.directory.lost() or str(broker.lost)
        server.stop(at_once=True)

    @contextmanager
    def _listener(self) -> Iterator[socket.socket]:
        """Bind the socket. Assumes that ``LOCK`` is held, so an existing socket file belongs to a dead process."""
        with suppress(FileNotFoundError):
            os.unlink(self.socket_path)  # noqa: PTH108 (no Path is needed)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.setblocking(False)
            with sockets.short_name(self.socket_path) as name:
                listener.bind(name)
                os.chmod(name, FILE_MODE)  # noqa: PTH101 (no Path is needed); before it listens: until then it refuses
            made = RealFileSystem().inode(self.socket_path)
            try:
                yield listener
            finally:
                if not_there(RealFileSystem(), self.socket_path, made) is None:  # else the directory was replaced
                    with suppress(OSError):
                        os.unlink(self.socket_path)  # noqa: PTH108 (no Path is needed)

    def _tell_ready(self) -> None:
        if not self._inodes:
            with suppress(OSError):
                paths = (self._options.data_dir, f"{self._options.data_dir}/topics")
                self._inodes = {path: RealFileSystem().inode(path) for path in paths}
        if not self.ready.done():
            self.ready.set_result(None)

    async def _sleep(self, delay_s: float) -> None:
        """Sleep for ``delay_s`` seconds, or until closed."""
        assert self._wake is not None
        with suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await self._wake.wait()


def _promise() -> Future[None]:
    """A future that a cancelled waiter does not cancel."""
    future: Future[None] = Future()
    future.set_running_or_notify_cancel()
    return future


# -- after a fork

_hosts: "weakref.WeakSet[EmbeddedHost]" = weakref.WeakSet()


def _leave_to_parent() -> None:
    """In a forked child: close the inherited descriptors of lock and connections. Otherwise they would outlive a killed
    parent, and no other process could take over.

    Each descriptor is replaced by the null device, because the object that owns it may close it again.
    """
    hosts = list(_hosts)
    if not hosts:
        return
    locks = set()
    for host in hosts:
        host.forked = True
        for path in (host.lock_path, os.path.dirname(host.lock_path)):  # noqa: PTH120 (no Path is needed)
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
    """Whether a descriptor is a socket of a served directory: its listener, or either end of a connection. Raises: OSError."""
    connection = socket.socket(fileno=number)
    try:
        names = [connection.getsockname()]
        with suppress(OSError):
            names.append(connection.getpeername())
        return connection.family == socket.AF_UNIX and any(os.fsdecode(name).endswith(f"/{SOCKET_NAME}") for name in names)
    finally:
        connection.detach()


os.register_at_fork(after_in_child=_leave_to_parent)
