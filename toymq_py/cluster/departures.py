"""Topics that move from this leader's group to others: the sending end of a move. ADR 0194.

Contract: groups.md, stage 3; ``move_line`` has the messages. Belongs to the event loop; files are read on threads.

    rounds      the topic is served. Sealed segments are sent, then those sealed meanwhile, until few bytes are left
    held        commands for the topic wait. It is closed as at a clean stop, a mark is written, and the rest is sent
    given       one transaction of etcd. After it the copy here is removed, and waiting commands are answered MOVED
    kept        instead of given: the topic is opened again, and waiting commands go on

Only this end asks for the transaction. Until it does, it may keep the topic, whatever has happened to the other end.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar

from toymq_py.broker import Broker
from toymq_py.broker_waits import settled
from toymq_py.cluster.group_placement import GroupPlacement
from toymq_py.errors import BadOperation, RequestError
from toymq_py.names import DEAD_LETTERS
from toymq_py.replication.bulk_copy import Pace, pieces_of, take_batch
from toymq_py.replication.disk_calls import Offload, StopFlag, run_on_thread
from toymq_py.replication.link_options import secret_refusal
from toymq_py.replication.manifest import Action, FilePlan
from toymq_py.replication.move_line import MOVE, MOVED, MOVING, SYNCED, VERSION, MoveRequest, decode, encode_sizes
from toymq_py.replication.operations import Copied, Operation, Plan, Unlink, encode
from toymq_py.replication.paths import is_file
from toymq_py.storage import evicted
from toymq_py.storage.fs import FileSystem, Stamp
from toymq_py.storage.moves_file import Mark

logger = logging.getLogger("toymq_py.cluster")

T = TypeVar("T")

HOLD_S = 2.0
"""How long a topic is held for the last round, before this group keeps it. The last round takes a tenth of that."""
SMALL_BYTES = 1 << 20
"""A round with no more bytes is the last one while the topic is served."""
ROUNDS_MAX = 20
"""Most rounds: while publishers are faster than the copy, rounds do not become small."""
QUIET_S = 10.0
"""How long a departure waits for dead letters that are on their way."""
SILENCE_S = 30.0
"""How long the other end may say nothing."""


class NotMoved(Exception):
    """This attempt to give the topic away has failed, and the topic stays here."""


@dataclass(frozen=True, slots=True)
class Home:
    """What both ends of a move need of the leader.

    Args:
        name: the cluster's.
        token: the secret of the nodes.
    """

    placement: GroupPlacement
    broker: Broker
    name: str
    token: str | None

    @property
    def fs(self) -> FileSystem:
        return self.broker.directory.fs

    @property
    def root(self) -> str:
        """The path of the data directory."""
        return self.broker.directory.path

    @property
    def offload(self) -> Offload:
        """Runs disk jobs; the callback of a job is called once its writes are on every disk of the group."""
        return self.broker.directory.scheduler

    def mark(self, way: Literal["from", "to"], group: str) -> Mark:
        """The file that marks a topic as arriving (``from``) or leaving (``to``)."""
        return Mark(way, group, self.placement.cluster)


class Departures:
    """Gives topics away on behalf of a leader."""

    def __init__(self, home: Home, pace: Pace) -> None:
        """``pace``: limits the rate of all copies together while their topics are served."""
        self._home = home
        self._pace = pace
        self._under_way: dict[str, asyncio.Task[None]] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection that asks for a topic; its first bytes, ``MOVE``, have been read."""
        try:
            async with asyncio.timeout(SILENCE_S):
                asked = decode(MOVE + await reader.readline())
        except (BadOperation, ValueError, OSError) as error:
            logger.warning("a connection to the listener of replicas was closed: %s", error)
            return
        if (refusal := self._refusal(asked)) is not None:
            writer.write(f"ERR {refusal}\n".encode())
            with suppress(OSError):
                await writer.drain()
            return
        task = asyncio.current_task()
        assert task is not None
        self._under_way[asked.topic] = task
        try:
            await _Departure(self._home, asked, reader, writer, self._pace).run()
        except (NotMoved, RequestError, OSError, EOFError) as error:  # a TimeoutError is an OSError
            why = str(error) or "it took too long"
            logger.warning("topic %s was not moved to group %s this time: %s", asked.topic, asked.to, why)
        finally:
            del self._under_way[asked.topic]

    def _refusal(self, asked: MoveRequest) -> str | None:
        home = self._home
        group = home.placement.group
        if (why := secret_refusal(asked.token, home.token)) is not None:
            logger.warning("group %s asks for topic %s, and was refused: AUTH_FAILED %s", asked.to, asked.topic, why)
            return f"AUTH_FAILED {why}"
        if asked.version != VERSION:
            return f"BAD_VERSION this leader speaks version {VERSION}"
        if (asked.cluster, asked.group) != (home.name, group):
            return f"WRONG_CLUSTER this is group {group} of cluster {home.name}"
        is_busy = asked.topic in self._under_way or asked.topic in home.broker.moves.marks
        if is_busy or home.placement.revision(asked.topic) is None:
            return "BUSY the topic is being moved, placed or deleted"
        if (why := home.broker.moves.refusal(asked.topic)) is not None:
            return f"REFUSED {why}"
        return None

    async def close(self) -> None:
        """End the running moves, and wait for their last disk job, since another process may use the directory soon."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Departure:
    """One attempt to give a topic away."""

    def __init__(
        self, home: Home, asked: MoveRequest, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pace: Pace
    ) -> None:
        self._home = home
        self._asked = asked
        self._topic = asked.topic
        self._reader = reader
        self._writer = writer
        self._pace = pace
        self._sent: dict[str, Stamp] = {}
        self._stop = StopFlag()

    async def run(self) -> None:
        """Carry out the attempt. Raises: NotMoved, RequestError, OSError, EOFError."""
        moves, topic = self._home.broker.moves, self._topic
        self._writer.write(MOVING)
        for _ in range(ROUNDS_MAX):
            await self._seal()
            if await self._round() <= SMALL_BYTES:
                break
        try:
            async with asyncio.timeout(QUIET_S):
                await called(partial(moves.quiet, topic))
        except BaseException:
            moves.resume(topic)
            raise
        if self._home.placement.revision(topic) is None or moves.refusal(topic) is not None:
            moves.resume(topic)
            raise NotMoved("it was deleted, or has failed")
        await self._held()

    async def _held(self) -> None:
        """Hold the topic and give it away. Cancellation leaves the files as they are: the next term reads the mark."""
        placement, moves, topic, to = self._home.placement, self._home.broker.moves, self._topic, self._asked.to
        began = asyncio.get_running_loop().time()
        revision = placement.revision(topic)
        assert revision is not None, "nothing has changed its record since it was asked for"
        placement.held.hold(topic)
        try:
            await called(partial(moves.close, topic))
            async with asyncio.timeout_at(began + HOLD_S):
                await called(partial(moves.mark, topic, self._home.mark("to", to)))
                await self._round(held=True)
            await self._give(revision)
        except Exception:
            try:
                moves.open(topic)
            finally:
                placement.held.let_go(topic)
            moves.mark(topic, None, _ignore)
            raise
        self._writer.write(MOVED)
        placement.held.let_go(topic)
        held_s = asyncio.get_running_loop().time() - began
        logger.info("topic %s is in group %s now: it was held for %.3f s", topic, to, held_s)
        try:
            await called(partial(moves.remove, topic))
            moves.mark(topic, None, _ignore)
        except OSError as error:
            logger.error("topic %s: its copy here is removed at the next start: %s", topic, error)  # noqa: TRY400 (one line)

    async def _give(self, revision: int) -> None:
        """Ask etcd to give the topic to the other group. Raises: NotMoved when the topic stays here."""
        held, asked = self._home.placement.held, self._asked
        if not await held.give(self._topic, revision, asked.to, asked.epoch, asked.attempt):
            raise NotMoved("one of the leaders has changed, or the move was given up")

    async def _seal(self) -> None:
        """Let later publishes go to new segments. Raises: RequestError."""
        broker = self._home.broker
        for name in broker.moves.names(self._topic):
            _, commit = broker.topics[name].committer.begin_segment()
            if (error := await settled(commit)) is not None:
                raise error

    async def _round(self, *, held: bool = False) -> int:
        """Send the changes since the last round, and wait until the other end has stored them. Returns: the bytes sent. Raises:
        NotMoved, OSError, EOFError."""
        fs, root = self._home.fs, self._home.root
        found = await self._on_thread(lambda: list_files(fs, root, self._topic, held=held))
        if held and await self._on_thread(lambda: any(is_evicted(fs, root, path) for path in found)):
            raise NotMoved("a segment has just left the disk for the bucket of --tier")
        changed = [path for path, stamp in found.items() if self._sent.get(path) != stamp]
        gone = [path for path in self._sent if path not in found or path in changed]
        await self._send([Unlink(0, path) for path in gone])
        total = 0
        pieces = pieces_of(fs, root, [FilePlan(path, Action.COPY) for path in changed], self._stop, whole=True)
        try:
            while batch := await self._on_thread(lambda: take_batch(pieces)):
                size = sum(len(piece.data) for piece in batch)
                total += size
                if not held:
                    await self._pace.wait_for(size)
                await self._send(batch)
        finally:
            pieces.close()
        self._sent = found
        await self._send([Plan(0, encode_sizes({path: stamp[2] for path, stamp in found.items()})) if held else Copied(0)])
        async with asyncio.timeout(SILENCE_S):
            answer = await self._reader.readline()
        if answer != SYNCED:
            raise NotMoved("the other leader has closed the connection" if not answer else f"it says {answer[:200]!r}")
        return total

    async def _on_thread(self, job: Callable[[], T]) -> T:
        return await run_on_thread(self._home.offload, job, self._stop)

    async def _send(self, operations: Sequence[Operation]) -> None:
        self._writer.writelines([part for operation in operations for part in encode(operation) if part])
        async with asyncio.timeout(SILENCE_S):
            await self._writer.drain()


def list_files(fs: FileSystem, root: str, topic: str, *, held: bool) -> dict[str, Stamp]:
    """The files of a topic and its dead letters. Without ``held`` only those that change no more: sealed segments and their
    sidecars. Blocks. Raises: OSError."""
    found = {}
    for directory in (f"topics/{topic}", f"topics/{topic}{DEAD_LETTERS}"):
        if not fs.is_dir(f"{root}/{directory}"):
            continue
        names = [name for name in fs.listdir(f"{root}/{directory}") if is_file(f"{directory}/{name}")]
        active = max((name for name in names if name.endswith(".log")), default="")
        for name in names:
            if held or (name[0].isdigit() and name != active):
                with suppress(FileNotFoundError):
                    found[f"{directory}/{name}"] = fs.stamp(f"{root}/{directory}/{name}")
    return found


def is_evicted(fs: FileSystem, root: str, path: str) -> bool:
    """Whether a file lists segments that were evicted, so that only a bucket has them. Blocks. Raises: OSError."""
    directory, _, name = f"{root}/{path}".rpartition("/")
    if name not in (evicted.FILE_NAME, evicted.OTHER_NAME):
        return False
    known = evicted.load(fs, directory, fs.listdir(directory))
    return bool(known.segments) or known.problem is not None


async def called(begin: Callable[[Callable[..., None]], object]) -> None:
    """Call ``begin`` with a callback, and wait until the callback is called. Raises: the error that the callback gets."""
    over: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def done(error: Exception | None = None) -> None:
        if not over.done():
            over.set_result(error)

    begin(done)
    if (error := await over) is not None:
        raise error


def _ignore(error: OSError | None) -> None:
    """Ignore an error when a mark is removed: at the next start the topic's record in etcd decides what a left mark means."""
