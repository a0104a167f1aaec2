"""Topics that move to this leader's group: the receiving end of a move. ADR 0194.

Contract: groups.md, stage 3; ``move_line`` has the messages. Belongs to the event loop; files are written on threads, through
the file system of the broker, which replicates them to this group's followers.

    begun       the attempt gets a new number in etcd, so no earlier one can succeed; a mark is written
    copied      the group that has the topic sends its files. The topic is not served here
    held        all files are on every disk of this group. Commands for the topic wait, as it may belong here from now on
    taken       etcd says that the topic belongs here: it is opened
    not taken   the copy is removed, and the next attempt begins some time later

One topic moves at a time. A move that etcd asks for is repeated until it succeeds, whichever leaders fail meanwhile.
"""

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from toymq_py.cluster.departures import SILENCE_S, Home, called
from toymq_py.errors import BadOperation, EtcdError
from toymq_py.names import DEAD_LETTERS
from toymq_py.replication.disk_calls import run_on_thread
from toymq_py.replication.follower_link import NotAccepted
from toymq_py.replication.kept_places import KeptPlaces, Move, why_it_stays
from toymq_py.replication.move_line import MOVED, MOVING, SYNCED, MoveRequest, decode_sizes, encode
from toymq_py.replication.operations import Copied, Copy, Mkdir, Operation, OperationReader, Plan, Unlink
from toymq_py.replication.paths import is_file
from toymq_py.replication.replica_files import ReplicaFiles

logger = logging.getLogger("toymq_py.cluster")

READ_BYTES = 1 << 18
BATCH_BYTES = 4 << 20
"""Bytes that are written and synced at a time: the others wait in the queues of this group's followers, which are bounded."""
RETRY_MIN_S, RETRY_MAX_S = 0.5, 30.0
"""The time between two attempts for a topic."""

Connect = Callable[[str], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
"""Makes a connection to the ``--replicate`` of an address. Raises: OSError, NotAccepted."""


class NotTaken(Exception):
    """This attempt to fetch the topic has failed; another one follows."""


class Impossible(Exception):
    """No attempt to move the topic can succeed; the error is shown to the operator who asked for the move."""


TROUBLES = NotTaken, NotAccepted, BadOperation, OSError, EOFError
"""The errors that end an attempt."""


class Arrivals:
    """Fetches topics for the group of a leader. ``run`` lasts as long as the leader's term."""

    def __init__(self, home: Home, kept: KeptPlaces, connect: Connect) -> None:
        self._home = home
        self._kept = kept
        self._connect = connect
        self._news = asyncio.Event()
        self._later: dict[str, tuple[float, float]] = {}  # by topic: when it is tried again, and how long that was put off
        home.placement.held.on_moves = self._news.set

    async def run(self) -> None:
        """Fetch topics until cancelled; at its end no disk job is left running."""
        loop = asyncio.get_running_loop()
        while True:
            self._news.clear()
            wanted = self._home.placement.held.wanted()
            self._later = {topic: later for topic, later in self._later.items() if topic in wanted}
            due = min(wanted, key=lambda topic: self._later.get(topic, (0.0, 0.0)), default=None)
            wait_s = None if due is None else max(self._later.get(due, (0.0, 0.0))[0] - loop.time(), 0.0)
            if due is None or wait_s:
                try:
                    async with asyncio.timeout(wait_s):
                        await self._news.wait()
                except TimeoutError:
                    pass
                continue
            before_s = self._later.get(due, (0.0, 0.0))[1]
            delay_s = min(max(2 * before_s, RETRY_MIN_S), RETRY_MAX_S)
            await self._try(due, wanted[due])
            self._later[due] = loop.time() + delay_s, delay_s

    async def _try(self, topic: str, move: Move) -> None:
        try:
            await self._attempt(topic, move)
        except (EtcdError, *TROUBLES) as error:
            logger.warning("topic %s did not come this time: %s", topic, str(error) or "it took too long")
        except Exception:
            logger.exception("a bug in the move of %s", topic)

    async def _attempt(self, topic: str, move: Move) -> None:
        """Try once to bring a topic here. Raises: NotTaken, EtcdError, OSError, BadOperation, EOFError, NotAccepted."""
        home, moves = self._home, self._home.broker.moves
        if (mark := moves.marks.get(topic)) is not None and mark.way == "to":
            raise NotTaken("the copy that was here before is still being removed")
        begun = await self._kept.attempt(topic, move, home.placement.epoch)
        if not begun.done:
            present = await self._kept.move(topic)
            if present is None or present.to != move.to or present.refused is not None:
                return  # it is over, and the watch says so soon
            begun = await self._kept.attempt(topic, move := present, home.placement.epoch)
            if not begun.done:
                raise NotTaken("it was asked for anew, or this node leads no longer")
        move = Move(move.to, begun.revision)
        if mark is not None:
            await self._clear(topic)
        try:
            await self._copy(topic, move)
        except Impossible as error:
            logger.warning("topic %s cannot be moved here: %s", topic, error)
            await self._kept.attempt(topic, move, home.placement.epoch, refused=str(error))

    async def _copy(self, topic: str, move: Move) -> None:
        """Copy a topic from the group that has it. Raises: Impossible, and as ``_attempt``."""
        home, moves = self._home, self._home.broker.moves
        record = await self._kept.record(topic)
        if record is None:
            raise Impossible(f"there is no topic {topic}")
        if (why := why_it_stays(topic, record)) is not None:
            raise Impossible(why)
        if record.group == home.placement.group:
            raise Impossible(f"{topic} is in group {record.group} already")
        if moves.is_stored(topic) or moves.names(topic):
            raise Impossible(f"group {home.placement.group} has files of {topic}, which it keeps closed: see its log")
        if (leader := home.placement.leader_of(record.group)) is None:
            raise NotTaken(f"group {record.group} has no leader")
        await called(partial(moves.mark, topic, home.mark("from", record.group)))
        asked = MoveRequest(home.name, record.group, move.to, home.placement.epoch, move.revision, topic, home.token)
        try:
            await self._fetch(asked, leader.member.repl)
        except (Impossible, *TROUBLES):
            await self._clear(topic)
            raise

    async def _fetch(self, asked: MoveRequest, address: str) -> None:
        """Fetch a topic from one address. Raises: as ``_copy``; then this attempt has failed."""
        placement, moves, topic = self._home.placement, self._home.broker.moves, asked.topic
        copy = _Copy(self._home, asked)
        try:
            reader, writer = await self._connect(address)
            try:
                await copy.receive(reader, writer)
            finally:
                writer.transport.abort()
        except TROUBLES:
            if not copy.held:
                raise
        finally:
            copy.close()
        if not await placement.held.take(topic, asked.attempt):
            placement.held.let_go(topic)
            raise NotTaken("the group that has it keeps it")
        try:
            moves.open(topic)
        finally:
            placement.held.let_go(topic)
        logger.info("topic %s came from group %s", topic, asked.group)
        moves.mark(topic, None, lambda error: None)  # one that stays is judged by the record at the next start

    async def _clear(self, topic: str) -> None:
        """Remove an incomplete copy. Raises: OSError; then the mark stays, and the next attempt or start tries again."""
        moves = self._home.broker.moves
        await called(partial(moves.remove, topic))
        await called(partial(moves.mark, topic, None))


class _Copy:
    """The received files of one attempt. ``held``: the topic may already belong to this group."""

    def __init__(self, home: Home, asked: MoveRequest) -> None:
        self.held = False
        self._home = home
        self._asked = asked
        self._directories = [f"topics/{asked.topic}", f"topics/{asked.topic}{DEAD_LETTERS}"]
        self._made: list[str] = []
        self._batch: list[Copy | Unlink] = []
        self._batch_bytes = 0
        self._files = ReplicaFiles(home.fs, home.root)

    async def receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Receive files until the other end has sent MOVED. Raises: Impossible, NotTaken, BadOperation, OSError, EOFError."""
        writer.write(encode(self._asked))
        async with asyncio.timeout(SILENCE_S):
            answer = await reader.readline()
        if answer != MOVING:
            text = answer.decode("utf-8", "replace").strip()
            if text.startswith("ERR REFUSED "):
                raise Impossible(text.removeprefix("ERR REFUSED "))
            if text.startswith("ERR AUTH_FAILED "):
                raise Impossible(f"group {self._asked.group} refuses group {self._asked.to}: {text.removeprefix('ERR ')}")
            raise NotTaken(f"the leader of group {self._asked.group} says: {text or 'nothing'}")
        operations = OperationReader()
        while not self.held:
            async with asyncio.timeout(SILENCE_S):
                data = await reader.read(READ_BYTES)
            if not data:
                raise NotTaken("the other leader has closed the connection")
            operations.receive(data)
            await self._take(operations, writer)
        async with asyncio.timeout(SILENCE_S):
            answer = await reader.readline()
        if answer != MOVED:
            raise NotTaken("the other leader has not said that it is here")

    def close(self) -> None:
        """Close the files. Idempotent."""
        self._files.close()

    async def _take(self, operations: OperationReader, writer: asyncio.StreamWriter) -> None:
        last: Operation | None = None
        while last is None and (operation := operations.next_operation()) is not None:
            match operation:
                case Copy() | Unlink() if operation.path.rpartition("/")[0] in self._directories:
                    self._batch.append(operation)
                    self._batch_bytes += len(operation.data) if isinstance(operation, Copy) else 0
                case Copied() | Plan():
                    last = operation
                case _:
                    raise BadOperation(f"{type(operation).__name__} is not of the files of {self._asked.topic}")
        if last is None and self._batch_bytes < BATCH_BYTES:
            return
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        sizes = decode_sizes(bytes(last.data)) if isinstance(last, Plan) else None
        await run_on_thread(self._home.offload, lambda: self._write(batch, sizes, ends=last is not None))
        if sizes is not None:
            self.held = self._home.placement.held.hold(self._asked.topic)
            if not self.held:
                raise NotTaken("it is being placed, since a client has asked for it")
        if last is not None:
            writer.write(SYNCED)

    def _write(self, batch: list[Copy | Unlink], sizes: dict[str, int] | None, *, ends: bool) -> None:
        """Write and sync a batch of operations. Blocks. Raises: OSError, BadOperation."""
        files, fs, root = self._files, self._home.fs, self._home.root
        if batch and fs.free_bytes(root) < self._home.broker.options.min_free_bytes + BATCH_BYTES:
            raise OSError(errno.ENOSPC, "less than --min-free-bytes would be free", root)
        for operation in batch:
            directory = operation.path.rpartition("/")[0]
            if directory not in self._made:
                files.apply(Mkdir(0, directory))
                self._made.append(directory)
            files.apply(operation)
        for path in {each.path: None for each in batch if isinstance(each, Copy)}:
            files.sync(path)
        files.make_room()
        if ends:
            for directory in (*self._made, "topics"):
                files.sync_dir(directory)
        if sizes is not None:
            files.close()
            found = {
                f"{directory}/{name}": fs.file_size(f"{root}/{directory}/{name}")
                for directory in self._made for name in fs.listdir(f"{root}/{directory}") if is_file(f"{directory}/{name}")
            }  # fmt: skip
            if found != sizes:
                differ = sorted(set(found.items()) ^ set(sizes.items()))[:3]
                raise BadOperation(f"the copy of {self._asked.topic} is not whole: {differ}")
