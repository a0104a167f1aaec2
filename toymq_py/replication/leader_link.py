"""A leader's end of one follower's link, from the moment its FOLLOW was accepted.

Contract: replication.md, sections 4 and 6; ADR 0097, 0098, 0106. Belongs to the event loop; files are read on threads.

    waiting         the follower is dropped from the in-sync set (T3) if it may be in it; its manifest; its turn to copy
    copying         operations go to the follower's spool, the bulk copy to its files
    catching up     the follower redoes the spool, and operations that came meanwhile
    joining         syncs wait for the follower; once all earlier syncs are acknowledged, T3 adds it to the in-sync set
    in sync         the follower may be elected
"""

import asyncio
import enum
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field

from toymq_py.clock import Clock
from toymq_py.errors import BadOperation, TermEnded
from toymq_py.metrics import BY_NAME, Histogram
from toymq_py.replication.acks import Alive, Damaged, Failed, Fenced, Report, ReportReader, Synced
from toymq_py.replication.bulk_copy import Pace, frames_of, pieces_of, take_batch
from toymq_py.replication.content_digests import ContentDigests
from toymq_py.replication.disk_calls import Offload, StopFlag, run_on_thread
from toymq_py.replication.handshake import HandshakeReader, Lead, ManifestBytes, StreamFrom, Wait
from toymq_py.replication.handshake import encode as encode_message
from toymq_py.replication.link_options import LinkOptions
from toymq_py.replication.link_progress import FollowerSink
from toymq_py.replication.manifest import Manifest, decode_manifest, encode_plan, make_plan, missing_bytes
from toymq_py.replication.operations import Data, Plan, encode
from toymq_py.replication.required import InSyncChanges, RequiredFollowers
from toymq_py.replication.stream import Stream
from toymq_py.replication.tickets import Tickets

logger = logging.getLogger("toymq_py.replication")

READ_BYTES = 1 << 16
CLOSE_LAG_S = 0.2
"""A follower becomes required when it acknowledges operations that were sent no longer ago: clients wait no longer for its
joining."""
SLOW_AFTER_S = 10.0
LARGE_COPY_BYTES = 256 << 20
"""A larger bulk copy waits for its turn: one at a time. A follower that was away for a moment does not wait behind it."""
BULK_BELOW_BYTES = 4 << 20
"""The bulk copy waits while more bytes of the stream do."""
UNSENT_BYTES_MAX = 1 << 16
"""Most bytes of lines that a follower has not taken."""
DAMAGES_MAX = 1000


class LinkState(enum.Enum):
    WAITING = "waiting"
    COPYING = "copying"
    CATCHING_UP = "catching up"
    JOINING = "joining"
    IN_SYNC = "in sync"
    LEAVING = "leaving"


@dataclass(slots=True)
class Term:
    """What a leader's links to its followers share during one epoch."""

    epoch: int
    stream: Stream
    tickets: Tickets
    digests: ContentDigests
    clock: Clock
    loop: asyncio.AbstractEventLoop
    options: LinkOptions
    changes: InSyncChanges
    offload: Offload
    required: RequiredFollowers
    pace: Pace
    copied_bytes: int = 0
    sync_s: dict[str, Histogram] = field(default_factory=dict)
    """How long followers took to acknowledge syncs, by the follower's name."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held during a large bulk copy."""


class LinkEnded(Exception):
    """Raised to end a link; the text says why, for the log."""


class LeaderLink:
    """The link of one follower. ``run`` serves it to its end; the other methods may be called meanwhile."""

    def __init__(
        self, term: Term, replica: str, name: str, stream_id: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter,
        handshake: HandshakeReader,
    ) -> None:  # fmt: skip
        """``handshake``: the reader of the connection, which has read FOLLOW."""
        self.replica = replica
        self.name = name
        self.state = LinkState.WAITING
        self.gone = asyncio.Event()
        """Set by the owner when it has done all that follows from the end of the link."""
        self.heard = asyncio.Event()
        """Set when the follower sends something; cleared by the task that waits for it."""
        self.writer = writer
        self._term = term
        self._stream_id = stream_id
        self._reader = reader
        self._handshake: HandshakeReader | None = handshake
        self._reports = ReportReader()
        self._heard_at = term.clock.monotonic()
        self._failure: asyncio.Future[None] = term.loop.create_future()
        self._wake = asyncio.Event()
        sync_s = term.sync_s.setdefault(name, Histogram(BY_NAME["replica_sync_seconds"]))
        self._sink = FollowerSink(self._woken, term.options.buffer_bytes, term.clock, sync_s)
        self._tasks: asyncio.TaskGroup | None = None
        self._manifest: asyncio.Future[bytes] = term.loop.create_future()
        self._stop = StopFlag()
        self._bulk: list[Data] = []  # frames that go next
        self._bulk_taken = asyncio.Event()
        self._plan_sent = False
        self._planned, self._copied, self._progress = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._delay_s: float | None = None  # of the acknowledgement that came last
        self._copied_at = 0.0
        self._damages = 0

    async def run(self) -> str:
        """Serve the link. Returns: why it has ended. The connection is then still open, but no task of the link runs."""
        reason = "it was ended"
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                tasks.create_task(self._fail_when_told())
                tasks.create_task(self._read())
                tasks.create_task(self._join())
        except* LinkEnded as group:
            reason = str(group.exceptions[0])
        except* BadOperation as group:
            reason = f"it broke the protocol: {group.exceptions[0]}"
        except* TermEnded as group:
            reason = str(group.exceptions[0])
        except* OSError as group:
            reason = f"a file cannot be read for its copy: {group.exceptions[0]}"
        finally:
            self.state = LinkState.LEAVING
            self._term.stream.detach(self._sink)
            if self._failure.done() and not self._failure.cancelled():
                self._failure.exception()
        return reason

    def fail(self, reason: str) -> None:
        """End the link for this reason."""
        if not self._failure.done():
            self._failure.set_exception(LinkEnded(reason))

    def tick(self, now: float, *, judge: bool) -> None:
        """Send a sign of life twice a second. ``judge``: end the link when the follower is silent."""
        timeout_s = self._term.options.timeout_s
        if self.state is LinkState.WAITING:
            if self.writer.transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
                self.fail("it takes no bytes")
                return
            self.writer.write(encode_message(Wait()))
        if self.state is LinkState.LEAVING or not judge:
            return
        if self.state in (LinkState.JOINING, LinkState.IN_SYNC) and (stuck_s := self._sink.stuck_s(now)) > timeout_s:
            self.fail(f"it has acknowledged nothing for {stuck_s:.1f} s")
        elif now - self._heard_at > timeout_s:
            self.fail(f"it has said nothing for {now - self._heard_at:.1f} s")

    def lag(self, now: float) -> tuple[int, float]:
        """The follower's lag in bytes and seconds (``FollowerSink.lag``)."""
        return self._sink.lag(now)

    # -- tasks

    async def _fail_when_told(self) -> None:
        await self._failure

    async def _read(self) -> None:
        try:
            while data := await self._reader.read(READ_BYTES):
                self._heard_at = self._term.clock.monotonic()
                self.heard.set()
                self._take(data)
        except OSError as error:
            raise LinkEnded(f"the connection failed: {error.strerror or error}") from None
        raise LinkEnded("it has closed the connection")

    def _take(self, data: bytes) -> None:
        """Take bytes that a follower has sent. Raises: BadOperation; LinkEnded."""
        if self._handshake is not None:
            self._handshake.receive(data)
            data = b""
            while not self._manifest.done() and (message := self._handshake.next_message()) is not None:
                if isinstance(message, ManifestBytes):
                    self._manifest.set_result(message.data)
                elif not isinstance(message, Wait):
                    raise BadOperation(f"{type(message).__name__} where MANIFEST is expected")
            if not self._manifest.done():
                return
            data = self._handshake.take_rest()
            self._handshake = None
        self._reports.receive(data)
        while (report := self._reports.next_report()) is not None:
            self._hear(report)

    def _hear(self, report: Report) -> None:
        match report:
            case Synced(seq):
                self._acknowledged(seq)
            case Failed(seq, code):
                raise LinkEnded(f"its disk failed at operation {seq}: {os.strerror(code)}")
            case Fenced(epoch):
                if epoch <= self._term.epoch:
                    raise BadOperation(f"it is fenced by epoch {epoch}, which is not above {self._term.epoch}")
                self._term.changes.fenced(epoch)
                raise LinkEnded(f"it has promised epoch {epoch}")
            case Damaged(path, position):
                self._damages += 1
                if self._damages > DAMAGES_MAX:
                    raise BadOperation(f"it reports more than {DAMAGES_MAX} damages")
                logger.warning("follower %s: %s is damaged at %d in its copy, and so it is here: see `toymq verify`",
                               self.name, path, position)  # fmt: skip
            case Alive():
                pass

    def _acknowledged(self, seq: int) -> None:
        if self.state is LinkState.COPYING and seq == 0 and self._plan_sent and not self._planned.is_set():
            self._planned.set()
            return
        delay_s = self._sink.acknowledge(seq)
        if delay_s is None:
            raise BadOperation(f"it acknowledges operation {seq}, which is not due")
        if not self._copied.is_set():
            if seq != self._sink.copied_seq:
                raise BadOperation(f"it acknowledges operation {seq} before its copy is whole")
            self._copied.set()
            self._copied_at = self._term.clock.monotonic()
            self._term.tickets.acknowledge_through(self.replica, seq)
        else:
            self._term.tickets.acknowledge(self.replica, seq)
        self._delay_s = delay_s
        self._progress.set()

    async def _write(self) -> None:
        """Send waiting bytes: the stream first, and the bulk copy when little of the stream waits."""
        outbox, writer = self._sink.outbox, self.writer
        try:
            while True:
                self._wake.clear()
                parts = outbox.take()
                if writer.transport.is_closing():  # uvloop raises for a write then, and no OSError
                    raise LinkEnded("the connection was closed")
                if parts:
                    writer.writelines(parts)
                if self._bulk and outbox.waiting_bytes < BULK_BELOW_BYTES:
                    writer.writelines(self._bulk)
                    self._bulk = []
                    self._bulk_taken.set()
                elif not parts:
                    await self._wake.wait()
                    continue
                await writer.drain()
        except OSError as error:
            raise LinkEnded(f"the connection failed: {error.strerror or error}") from None

    def _woken(self) -> None:
        """Wake the writer; called on any thread."""
        self._term.loop.call_soon_threadsafe(self._wake_up)

    def _wake_up(self) -> None:
        self._wake.set()
        if self._sink.outbox.overflowed:
            self.fail(f"it is behind by more than {self._term.options.buffer_bytes} bytes")

    # -- joining

    async def _join(self) -> None:
        """Join a follower that is not in the in-sync set. Raises: LinkEnded; BadOperation; OSError; TermEnded."""
        term = self._term
        if self.replica in term.required.replicas:
            await term.required.drop(self.replica)
        self.writer.write(encode_message(Lead(term.epoch, self._stream_id)))
        if self._handshake is not None:
            self._handshake.manifest_allowed = True
            self._take(b"")  # what came with FOLLOW
        manifest_bytes = await self._manifest
        manifest = await run_on_thread(term.offload, lambda: decode_manifest(manifest_bytes))
        missing = await run_on_thread(term.offload, lambda: missing_bytes(manifest, term.digests))
        is_large = missing > LARGE_COPY_BYTES
        if is_large:
            await term.turn.acquire()
        try:
            self.state = LinkState.COPYING
            await self._copy(manifest)
            await self._copied.wait()
        finally:
            if is_large:
                term.turn.release()
        await self._wait_until(self._is_close)
        self.state = LinkState.JOINING
        term.required.add(self.replica)
        barrier = term.stream.last
        await self._wait_until(lambda: not self._sink.is_due_through(barrier))
        await term.changes.add(self.replica)
        self.state = LinkState.IN_SYNC
        logger.info("follower %s (%s) is in sync", self.name, self.replica[:8])

    def _is_close(self) -> bool:
        """Whether the follower has nearly caught up: it acknowledges operations sent a moment, or with a slow disk a while,
        ago."""
        if self._delay_s is None:
            return False
        has_tried = self._term.clock.monotonic() - self._copied_at > SLOW_AFTER_S
        return self._delay_s <= (self._term.options.timeout_s / 3 if has_tried else CLOSE_LAG_S)

    async def _copy(self, manifest: Manifest) -> None:
        """Send the plan and the bulk copy, while the stream is sent, too."""
        term = self._term
        before = term.stream.attach(self._sink)
        self.writer.write(encode_message(StreamFrom(before)))
        assert self._tasks is not None
        self._tasks.create_task(self._write())
        await self._wait_until_done_here(before)
        plan = await run_on_thread(term.offload, lambda: make_plan(manifest, term.digests, self._stop), self._stop)
        plan_bytes = encode_plan(plan)
        self._plan_sent = True
        await self._send([*encode(Plan(0, plan_bytes))])
        await self._planned.wait()
        pieces = pieces_of(term.digests.fs, term.digests.root, plan.copied(), self._stop)

        def next_batch() -> tuple[int, list[Data]] | None:
            batch = take_batch(pieces)
            return (sum(len(piece.data) for piece in batch), frames_of(batch)) if batch else None

        copied_bytes = 0
        try:
            while batch := await run_on_thread(term.offload, next_batch, self._stop):
                size, frames = batch
                await term.pace.wait_for(size)
                await self._send(frames)
                copied_bytes += size
                term.copied_bytes += size
        finally:
            pieces.close()
        term.stream.end_copy(self._sink)
        self.state = LinkState.CATCHING_UP
        logger.info("follower %s (%s): %d bytes of %d files were copied", self.name, self.replica[:8], copied_bytes,
                    len(plan.copied()))  # fmt: skip

    async def _wait_until_done_here(self, seq: int) -> None:
        """Wait until operations up to ``seq`` are done on this disk: the stream does not have them, so the bulk copy must."""
        done = asyncio.Event()
        loop = self._term.loop

        def call() -> None:
            loop.call_soon_threadsafe(done.set)

        self._term.stream.when_done(seq, call)
        await done.wait()

    async def _send(self, frames: list[Data]) -> None:
        self._bulk_taken.clear()
        self._bulk = frames
        self._wake.set()
        await self._bulk_taken.wait()

    async def _wait_until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self._progress.clear()
            await self._progress.wait()
