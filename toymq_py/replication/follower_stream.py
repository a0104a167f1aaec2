"""The binary part of a follower's link: from the plan to BYE.

Contract: replication.md, sections 4 and 6; ADR 0097, 0098, 0106. Belongs to the event loop; longer blocking calls run on
threads.

    comparing      the leader compares the files; operations go to the spool
    copying        COPY frames go to the files, operations to the spool
    catching up    the spool is redone on top of the copy, all files are synced and checked, COPIED is acknowledged; then
                   operations that came meanwhile are applied and acknowledged one by one
    following      operations are applied as they come
"""

import asyncio
import enum
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from toymq_py.clock import Clock
from toymq_py.errors import BadOperation
from toymq_py.replication.acks import Damaged, Failed, Report, Synced
from toymq_py.replication.applier import Applier
from toymq_py.replication.disk_calls import Offload, StopFlag, run_on_thread
from toymq_py.replication.manifest import Action, JoinPlan, Manifest, decode_plan, may_be_cached_only
from toymq_py.replication.operations import Beat, Bye, Copied, Copy, Operation, OperationReader, Plan, encode
from toymq_py.replication.put_aside import Moved, carry_out, check_plan, remove_old, touched
from toymq_py.replication.replica_file import ReplicaFile
from toymq_py.replication.replica_files import ReplicaFiles
from toymq_py.replication.spool import Spool
from toymq_py.storage.fs import FileSystem
from toymq_py.storage.scanner import scan_segment
from toymq_py.storage.segment import parse_segment_name

logger = logging.getLogger("toymq_py.replication")

NAMED_MAX = 16
"""Most segments put aside that the log names one by one."""
DAMAGES_REPORTED_MAX = 100
TURN_OPERATIONS = 64


class Phase(enum.Enum):
    COMPARING = "comparing"
    COPYING = "copying"
    CATCHING_UP = "catching up"
    FOLLOWING = "following"


class ByeSaid(Exception):
    """The leader has ended its term with BYE, and all operations before it are applied."""


class FollowerStream:
    """The stream of one link, applied to the directory. After ``end`` it does not touch the directory any more."""

    def __init__(
        self, *, fs: FileSystem, root: str, file: ReplicaFile, offload: Offload, clock: Clock, manifest: Manifest, place: str,
        spool: Spool, after: int, send: Callable[[Report], None], stop: StopFlag, unsynced: set[str] | None,
    ) -> None:  # fmt: skip
        """
        Args:
            manifest: the files that the directory has.
            place: the directory for files that are put aside, ``<epoch>-<stream-id>``.
            spool: the spool; its ``begin`` was called.
            after: the seq of the last operation before the stream.
            send: sends a report to the leader.
            stop: set by ``end``; its steps show that a long job makes progress.
            unsynced: paths that an earlier stream changed and perhaps did not sync (``ReplicaFiles``); None if unknown.
        """
        self.phase = Phase.COMPARING
        self.clock_offset_s: float | None = None
        self._fs = fs
        self._root = root
        self._file = file
        self._offload = offload
        self._clock = clock
        self._manifest = manifest
        self._place = place
        self._send = send
        self._stop = stop
        self._is_synced = False
        self._files = ReplicaFiles(fs, root, unsynced or ())
        self._knows_unsynced = unsynced is not None
        self._may_be_cached = may_be_cached_only(manifest, any_file=file.record.copying)
        self._reader = OperationReader()
        self._received = after
        self._spool = spool
        self._plan: JoinPlan | None = None
        self._copied_paths: frozenset[str] = frozenset()
        self._applier: Applier | None = None
        self._bye_seq: int | None = None
        loop = asyncio.get_running_loop()
        self._plan_came: asyncio.Future[bytes] = loop.create_future()
        self._copied_came: asyncio.Future[tuple[int, int]] = loop.create_future()
        self._ended: asyncio.Future[None] = loop.create_future()
        self._room = asyncio.Event()

    # -- what comes, in the order it comes

    async def take(self, data: bytes) -> None:
        """Take the next bytes. Returns when more may come. Raises: BadOperation; OSError of this node's disk."""
        self._reader.receive(data)
        frames: list[bytes] = []
        copies: list[Copy] = []
        while (operation := self._reader.next_operation()) is not None:
            if self._applier is not None and self.phase is Phase.FOLLOWING:
                self._apply(self._applier, operation)
            elif isinstance(operation, Plan):
                self._take_plan(operation)
            elif isinstance(operation, Copy):
                copies.append(self._checked(operation))
            elif isinstance(operation, Copied):
                if copies:
                    await self._write(copies)
                self._put(frames)
                self._take_copied(operation)
            else:
                self._number(operation)
                if isinstance(operation, Beat):
                    self._compare_clocks(operation)
                frames.extend(map(bytes, encode(operation)))
        self._put(frames)
        if copies:
            await self._write(copies)
        if self.phase is Phase.FOLLOWING:
            await self._wait_for_room()

    def _number(self, operation: Operation) -> None:
        if operation.seq != self._received + 1:
            raise BadOperation(f"operation {operation.seq} came after {self._received}: one is missing or came twice")
        self._received = operation.seq

    def _put(self, frames: list[bytes]) -> None:
        """Write frames to the spool, and empty the list. While ``following`` there are none."""
        if frames:
            self._spool.put(b"".join(frames))
            frames.clear()

    def _take_plan(self, operation: Plan) -> None:
        if self._plan_came.done():
            raise BadOperation("a second PLAN")
        self._plan_came.set_result(bytes(operation.data))

    def _checked(self, operation: Copy) -> Copy:
        if self.phase is not Phase.COPYING or operation.path not in self._copied_paths:
            raise BadOperation(f"COPY of {operation.path!a}, which is not in the plan or not yet")
        return operation

    async def _write(self, copies: list[Copy]) -> None:
        pieces = copies.copy()
        copies.clear()

        def job() -> None:
            for piece in pieces:
                self._stop.check()
                self._files.apply(piece)
                self._files.make_room()

        await run_on_thread(self._offload, job, self._stop)

    def _take_copied(self, operation: Copied) -> None:
        if self.phase is not Phase.COPYING or self._copied_came.done():
            raise BadOperation("COPIED where no copy is under way")
        if operation.seq != self._received:
            raise BadOperation(f"COPIED has the number {operation.seq}, the last operation {self._received}")
        self._copied_came.set_result((operation.seq, self._spool.end))

    def _apply(self, applier: Applier, operation: Operation) -> None:
        """Apply an operation of the stream. BYE is done, like a BEAT, when all operations before it are applied."""
        if isinstance(operation, Bye):
            self._bye_seq = operation.seq
            operation = Beat(operation.seq, 0, 0)
        elif isinstance(operation, Beat):
            self._compare_clocks(operation)
        applier.apply(operation)

    def _compare_clocks(self, beat: Beat) -> None:
        self.clock_offset_s = (self._clock.wall_ns() - beat.wall_ns) / 1e9

    async def _wait_for_room(self) -> None:
        assert self._applier is not None
        while self._applier.full:
            self._room.clear()
            await self._room.wait()

    # -- what is done with it

    async def work(self) -> None:
        """Join, then run until BYE or a failure.

        Raises: ByeSaid; BadOperation; OSError of this node's disk.
        """
        plan = await self._plan_of(await self._plan_came)
        moved = await run_on_thread(self._offload, lambda: self._begin_copy(plan), self._stop)
        _log_moved(moved)
        self._copied_paths = frozenset(each.path for each in plan.copied())
        self.phase = Phase.COPYING
        self._send(Synced(0))
        seq, spool_end = await self._copied_came
        self.phase = Phase.CATCHING_UP
        damages = await run_on_thread(self._offload, lambda: self._finish_copy(spool_end), self._stop)
        for damage in damages:
            logger.warning("%s is damaged at %d, in the leader's copy, too", damage.path, damage.position)
            self._send(damage)
        self._send(Synced(seq))
        self._applier = applier = Applier(
            self._files, self._offload, after=seq, report=self._report, on_room=self._room.set
        )  # fmt: skip
        for count, operation in enumerate(self._rest_of_spool()):
            self._apply(applier, operation)
            if applier.full:
                await self._wait_for_room()
            elif count % TURN_OPERATIONS == 0:
                await asyncio.sleep(0)  # let signs of life leave
        self._spool.clear()
        self.phase = Phase.FOLLOWING
        await self._ended

    def _rest_of_spool(self) -> Iterator[Operation]:
        """Read the operations in the spool after COPIED, and those that arrive meanwhile, in order."""
        end = -1
        while end != self._spool.end:
            end = self._spool.end
            yield from self._spool.take(end)

    async def _plan_of(self, data: bytes) -> JoinPlan:
        def job() -> JoinPlan:
            plan = decode_plan(data)
            check_plan(plan, self._manifest)
            return plan

        return await run_on_thread(self._offload, job)

    def _begin_copy(self, plan: JoinPlan) -> Moved:
        """Prepare the files for the bulk copy. Runs on a thread."""
        self._plan = plan
        self._file.change(copying=True)
        self._files.unsynced |= touched(plan, self._manifest)
        with suppress(OSError):
            remove_old(self._fs, self._root, self._clock.wall_ns())
        return carry_out(self._fs, self._root, plan, self._manifest, self._place, self._clock.wall_ns(), self._stop)

    def _finish_copy(self, spool_end: int) -> list[Damaged]:
        """Redo the spool, sync and check the copy. Runs on a thread. Returns: the damage found."""

        def steps(operations: Iterable[Operation]) -> Iterator[Operation]:
            for operation in operations:
                self._stop.check()
                yield operation

        self._files.redo(steps(self._spool.take(spool_end)))
        if self._knows_unsynced:
            self._files.sync_unsynced(self._stop.check)
        else:
            self._files.sync_all(self._stop.check, self._may_be_cached)
        damages = self._damages()
        self._file.change(copying=False)
        self._is_synced = True
        return damages

    @property
    def unsynced(self) -> set[str] | None:
        """The paths of files that may not be on the disk yet. None if unknown: the copy was not synced as a whole, or a sync
        has failed since, so that bytes in the page cache may never reach the disk."""
        is_known = self._is_synced and (self._applier is None or self._applier.failed is None)
        return self._files.unsynced if is_known else None

    def _damages(self) -> list[Damaged]:
        """The positions where copied segments fail their checks. The leader's segments fail there, too, as it sent these
        bytes."""
        assert self._plan is not None
        found: list[Damaged] = []
        for each in self._plan.files:
            base_id = parse_segment_name(each.path.rpartition("/")[2])
            if base_id is None or each.action not in (Action.APPEND, Action.COPY):
                continue
            try:
                result = scan_segment(self._fs, f"{self._root}/{each.path}", base_id, progress=lambda _: self._stop.check())
            except FileNotFoundError:
                continue  # removed or renamed since
            found += [Damaged(each.path, damage.position) for damage in result.segment.damages]
            if len(found) >= DAMAGES_REPORTED_MAX:
                return found[:DAMAGES_REPORTED_MAX]
        return found

    def _report(self, report: Report) -> None:
        if isinstance(report, Synced) and report.seq == self._bye_seq:
            self._fail(ByeSaid())
            return
        if isinstance(report, Failed):
            self._fail(OSError(report.code, os.strerror(report.code), f"operation {report.seq}"))
        self._send(report)

    def _fail(self, error: Exception) -> None:
        if not self._ended.done():
            self._ended.set_exception(error)

    async def end(self) -> None:
        """Stop, and return when no thread touches the directory any more. Must not be cancelled."""
        self._stop.is_set = True
        if self._ended.done() and not self._ended.cancelled():
            self._ended.exception()  # retrieved
        if self._applier is not None:
            self._applier.stop()
            while self._applier.running:
                self._room.clear()
                await self._room.wait()
        self._files.close()
        with suppress(OSError):
            self._spool.remove()


def _log_moved(moved: Moved) -> None:
    if not moved.files:
        return
    logger.warning("%d files of %d bytes that the leader does not have were put aside, to %s: they are removed in 7 days",
                   moved.files, moved.bytes, moved.place)  # fmt: skip
    for path in moved.segments[:NAMED_MAX]:
        logger.warning("put aside: %s/%s; it may have messages that were never acknowledged", moved.place, path)
    if len(moved.segments) > NAMED_MAX:
        logger.warning("put aside: %d more segments", len(moved.segments) - NAMED_MAX)
