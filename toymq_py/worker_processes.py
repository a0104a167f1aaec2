"""``toymq serve --workers N``: broker processes over one data directory, each with a part of the topics, and their parent.

Contract: groups.md, stage 2; ADR 0128, 0177. Loaded only with several workers. The parent holds the lock of the whole
directory and the bound sockets, has no threads and no event loop, and forks; a worker's broker holds the lock of its own
directory. A worker that dies is replaced, after a back-off if it was short-lived, while the others go on.
"""

import asyncio
import contextlib
import gc
import mmap
import os
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from toymq_py import daemon
from toymq_py.clock import Clock
from toymq_py.config.options import ServeOptions
from toymq_py.data_directory import made_and_locked, warn_of_access
from toymq_py.errors import DataDirectoryError, DirectoryLocked
from toymq_py.forking import BACK_OFF_MAX_S, BACK_OFF_MIN_S, ENDING, PASSED_ON, QUICK_S, UNUSABLE, LifeLine, fork, how_it_ended
from toymq_py.heartbeat import LOOK_AT_BEATS_S, Beats, Heartbeats
from toymq_py.net.acceptor import BACKLOG
from toymq_py.option_files import read_files
from toymq_py.placement import Placement
from toymq_py.runtime.memory_watch import default_max_bytes
from toymq_py.storage.dirlock import DirectoryLock
from toymq_py.storage.fs import FileSystem, RealFileSystem
from toymq_py.storage.workers_file import check_no_part, check_worker, divide, worker_path

UNIX_PATH_BYTES_MAX = 103
"""Longest path that fits into a socket address everywhere: Linux takes 107 bytes, the BSDs and macOS 103."""
ORPHANS_S = 5.0
"""How much longer than the shutdown timeout the workers of a killed supervisor may live."""
LOOK_S = 0.1
WAITED_FOR = {*PASSED_ON, signal.SIGCHLD}


@dataclass(slots=True)
class Seat:
    """The description of a worker, from which its process, and each later one that replaces it, is started."""

    worker: int
    options: ServeOptions
    listeners: daemon.Listeners
    addresses: Sequence[str]
    """The addresses of each worker: ``host:port``, and its other addresses after it."""
    sockets: Sequence[str]
    http_sockets: Sequence[str]
    """The paths of each worker's Unix sockets for the other workers; see ``Placement``."""
    changes: memoryview
    """A number for each worker, in memory that all of them share."""
    pids: memoryview
    """The process of each worker, in shared memory, 0 while it has none. The supervisor writes them."""
    beats: Heartbeats
    """The heartbeats of all workers."""
    lives: int = -1

    def serve(self, ready: Callable[[list[str]], None], reloads: Mapping[str, Callable[[], None]]) -> None:
        """Run the worker's broker (``daemon.serve``). Raises: also DataDirectoryError when its directory has disappeared."""
        check_worker(RealFileSystem(), self.options.data_dir.rpartition("/workers/")[0], self.worker)
        placement = Placement(
            self.worker, self.addresses, self.sockets, self.http_sockets, self.changes, self.pids, self.beats.stands_still
        )  # fmt: skip

        def begin(addresses: list[str]) -> None:
            self.beats.keep_beating(self.worker, asyncio.get_running_loop().call_later)
            ready(sorted(addresses, key=self._is_of_one))

        daemon.serve(self.options, begin, reloads, daemon.OfWorker(self.listeners, placement, self.lives))

    def _is_of_one(self, address: str) -> bool:
        """Whether an address belongs to this worker only; addresses of all workers are printed once by the supervisor."""
        return address.startswith("http") or address in self.addresses[self.worker].split()


@contextlib.contextmanager
def seats(options: ServeOptions, clock: Clock) -> Iterator[list[Seat]]:
    """Lock and divide the directory, and bind the addresses of all workers. Raises: ConfigError, DirectoryLocked,
    DataDirectoryError."""
    read_files(options)  # what is wrong there is wrong for each worker
    fs, root = RealFileSystem(), options.data_dir
    with contextlib.ExitStack() as held:
        check_no_part(fs, root)
        lock = _lock(fs, root, options.shutdown_timeout_ms / 1000 + ORPHANS_S, clock)
        held.callback(lock.release)
        warn_of_access(fs, root)
        try:
            divide(fs, root, options.workers)
        except OSError as error:
            raise DataDirectoryError(f"cannot divide {root}: {error.strerror or error}") from error
        memory_max_bytes = options.memory_max_bytes or default_max_bytes(options.workers)
        of_one = replace(options, memory_max_bytes=memory_max_bytes)
        each = [of_one.of_worker(worker, worker_path(root, worker)) for worker in range(options.workers)]
        of_all = daemon.bind_all(options, options.of_all_workers(), held)
        bound = [_bind_own(one, worker, held) for worker, one in enumerate(each)]
        addresses = [_shown(listeners) for listeners in bound]
        for listeners in bound:  # behind its own: the first address of each kind is the one that MOVED names
            listeners.update({option: [*listeners[option], *some] for option, some in of_all.items()})
        directory = held.enter_context(_opened(f"{root}/workers"))
        sockets: dict[str, list[str]] = {"--listen": [], "--http": []}
        for worker, listeners in enumerate(bound):
            for option, paths in sockets.items():
                path = _socket_path(f"{root}/workers", f"{worker}{option.replace('--', '.')}", directory)
                if option in listeners or "--https" in listeners:
                    waits = option == "--listen"
                    listeners[option] = [*listeners.get(option, ()), held.enter_context(_bound(path, waits=waits))]
                paths.append(path)
        changes, pids = (memoryview(mmap.mmap(-1, 8 * options.workers)).cast("Q") for _ in range(2))
        beats = Heartbeats(options.workers)
        yield [
            Seat(worker, one, bound[worker], addresses, sockets["--listen"], sockets["--http"], changes, pids, beats)
            for worker, one in enumerate(each)
        ]


def _bind_own(options: ServeOptions, worker: int, held: contextlib.ExitStack) -> dict[str, list[socket.socket]]:
    """Bind the addresses of one worker. Raises: ConfigError; DataDirectoryError, which tells from which option they come."""
    try:
        return dict(daemon.bind_all(options, options.listeners(), held))
    except DataDirectoryError as error:
        raise DataDirectoryError(f"{error}; it is worker {worker}'s own, and these count up from what you give") from error


def _lock(fs: FileSystem, root: str, within_s: float, clock: Clock) -> DirectoryLock:
    """Lock the directory. The workers of a killed supervisor hold the lock until they end: wait for them.

    Raises: DirectoryLocked, DataDirectoryError.
    """
    until = clock.monotonic() + within_s
    while True:
        try:
            return made_and_locked(fs, root, os.getpid(), "toymq serve --workers")
        except DirectoryLocked as error:
            if error.pid is None or _lives(error.pid) or clock.monotonic() >= until:
                raise
        signal.sigtimedwait((), LOOK_S)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:  # noqa: PTH123 (no Path is needed)
            return stat.read().rpartition(b")")[2].split()[0] != b"Z"  # a zombie: nothing has taken its exit code yet
    except OSError:  # not Linux
        return True


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    number = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield number
    finally:
        os.close(number)


def _socket_path(directory: str, name: str, opened: int) -> str:
    """A path of at most ``UNIX_PATH_BYTES_MAX`` bytes for a socket in a directory, for this process and its children."""
    path = f"{directory}/{name}"
    return path if len(os.fsencode(path)) <= UNIX_PATH_BYTES_MAX else f"/proc/self/fd/{opened}/{name}"


@contextlib.contextmanager
def _bound(path: str, *, waits: bool) -> Iterator[socket.socket]:
    """Bind a Unix socket for the other workers. An existing file is from a dead supervisor, since this one has the lock. Only
    the user of this process may connect. ``waits``: listen at once, so that connections wait until the worker is up.

    Raises: DataDirectoryError.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # noqa: PTH108 (no Path is needed)
            listener.setblocking(False)
            listener.bind(path)
            os.chmod(path, 0o600)  # noqa: PTH101 (no Path is needed); before it listens: until then it refuses
            if waits:
                listener.listen(BACKLOG)
        except OSError as error:
            raise DataDirectoryError(f"cannot make the socket {path}: {error.strerror or error}") from error
        yield listener
        with contextlib.suppress(OSError):
            os.unlink(path)  # noqa: PTH108 (no Path is needed)


def _shown(listeners: daemon.Listeners) -> str:
    shown = {option: daemon.shown_address(some[0]) for option, some in listeners.items() if option != "--metrics"}
    others = [daemon.READY_AS[option].format(address) for option, address in shown.items() if option != "--listen"]
    return " ".join((shown["--listen"], *others))


@dataclass(slots=True)
class _Process:
    """The process of a worker, and when its successor is due."""

    seat: Seat
    pid: int = 0
    began: float = 0.0
    due: float = 0.0
    back_off_s: float = BACK_OFF_MIN_S
    unusable: bool = False

    def is_run_by(self, pid: int) -> None:
        """Note the process of the worker. ``pid``: 0 for none."""
        self.pid = self.seat.pids[self.seat.worker] = pid


class Workers:
    """Runs a process for each worker until it is stopped."""

    def __init__(self, seats: Sequence[Seat], run: Callable[[Seat], int], say: Callable[[str], None], clock: Clock) -> None:
        """
        Args:
            run: runs a worker in its process; returns the exit code.
            say: logs a line, without leaving a thread behind.
        """
        self._processes = [_Process(seat) for seat in seats]
        self._run = run
        self._say = say
        self._monotonic = clock.monotonic
        self._stopping = False
        self._beats = [Beats() for _ in seats]
        self._looked = self._monotonic()

    def supervise(self) -> int:
        """Run the workers until they are stopped. Returns: the exit code, 2 when no worker can start. Raises: OSError (fork
        failed)."""
        gc.collect()
        gc.freeze()  # what was imported stays shared with the workers: a collection there would copy its pages
        signal.pthread_sigmask(signal.SIG_BLOCK, WAITED_FOR)
        line = LifeLine()
        try:
            while True:
                self._start_due(line)
                if not any(each.pid for each in self._processes):
                    if self._stopping:
                        return 0
                    if all(each.unusable for each in self._processes):
                        return UNUSABLE
                found = signal.sigtimedwait(WAITED_FOR, self._until_due_s())
                if found is not None and found.si_signo != signal.SIGCHLD:
                    self._pass_on(found.si_signo)
                self._see_ended()
                self._look_at_beats()
        finally:
            line.close()  # workers that are left, after an error here, end by themselves
            signal.pthread_sigmask(signal.SIG_UNBLOCK, WAITED_FOR)

    def _start_due(self, line: LifeLine) -> None:
        now = self._monotonic()
        for each in self._processes:
            if not each.pid and now >= each.due and not self._stopping:
                each.began = now
                each.seat.beats.begins(each.seat.worker)
                each.is_run_by(fork(lambda lives, seat=each.seat: self._become(seat, lives), line))  # type: ignore[misc] # its default

    def _become(self, seat: Seat, lives: int) -> int:
        """Set up a child process: close what belongs to the other processes, and run its worker. Returns: the exit code."""
        ours = {listener for some in seat.listeners.values() for listener in some}
        for other in self._processes:
            for some in other.seat.listeners.values():
                for listener in some:
                    if listener not in ours:
                        listener.close()
        seat.lives = lives
        return self._run(seat)

    def _until_due_s(self) -> float:
        """How many seconds to wait for a signal: until a dead worker is to be replaced, or the heartbeats are to be checked."""
        waiting = [each.due for each in self._processes if not each.pid and not self._stopping]
        return min(max(min(waiting) - self._monotonic(), 0.0) if waiting else LOOK_AT_BEATS_S, LOOK_AT_BEATS_S)

    def _look_at_beats(self) -> None:
        if self._stopping or (now := self._monotonic()) - self._looked < LOOK_AT_BEATS_S * 0.9:  # a wait may end early
            return
        self._looked = now
        for each, beats in zip(self._processes, self._beats, strict=True):
            worker, shared = each.seat.worker, each.seat.beats
            line = beats.seen(shared.count(worker) if each.pid else 0, each.pid)
            shared.found_silent(worker, beats.silent_at)
            if line:
                self._say(f"worker {worker} {line}")

    def _pass_on(self, number: int) -> None:
        if number in ENDING:
            self._stopping = True
        for each in self._processes:
            if each.pid:
                os.kill(each.pid, number)

    def _see_ended(self) -> None:
        for each in self._processes:
            if not each.pid:
                continue
            pid, status = os.waitpid(each.pid, os.WNOHANG)
            if not pid:
                continue
            each.is_run_by(0)
            if self._stopping:
                continue
            if status == signal.SIGHUP:  # it ends a process where there is nothing to read again: the terminal has gone
                self._pass_on(signal.SIGTERM)
                continue
            code, now = os.waitstatus_to_exitcode(status), self._monotonic()
            lived_long = now - each.began >= QUICK_S
            each.unusable = code == UNUSABLE and not lived_long
            each.back_off_s = BACK_OFF_MIN_S if lived_long else each.back_off_s
            each.due = now + each.back_off_s
            self._say(f"worker {each.seat.worker} {how_it_ended(code)}: it starts again in {each.back_off_s:.1f} s")
            each.back_off_s = min(each.back_off_s * 2, BACK_OFF_MAX_S)
