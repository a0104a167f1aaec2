"""A follower's end of the link: follows one leader until the link ends.

Contract: replication.md, sections 4 and 6; ADR 0097, 0098, 0106. Belongs to the event loop; blocking calls run on threads.
"""

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, TypeVar

from toymq_py.clock import Clock
from toymq_py.errors import BadOperation, DataDirectoryError
from toymq_py.net.certificates import reason_of
from toymq_py.replication.acks import Alive, Failed, Report, encode_report
from toymq_py.replication.content_digests import ContentDigests
from toymq_py.replication.disk_calls import Offload, StopFlag, run_on_thread
from toymq_py.replication.follower_stream import ByeSaid, FollowerStream
from toymq_py.replication.handshake import (
    VERSION,
    Follow,
    HandshakeReader,
    Lead,
    ManifestBytes,
    Refused,
    StreamFrom,
    Wait,
)
from toymq_py.replication.handshake import encode as encode_message
from toymq_py.replication.link_options import Identity, LinkOptions
from toymq_py.replication.manifest import Manifest, encode_manifest, take_manifest
from toymq_py.replication.replica_file import ReplicaFile
from toymq_py.replication.spool import Spool
from toymq_py.storage.fs import FileSystem
from toymq_py.storage.topic_directories import note_mounted
from toymq_py.storage.workers_file import check_usable

logger = logging.getLogger("toymq_py.replication")

READ_BYTES = 1 << 18
ALIVE_S = 0.5
"""The time between two signs of life while a job runs."""
JOB_STALL_S = 30.0
"""When a job makes no progress for so long, the disk hangs: no more signs of life."""
UNSENT_BYTES_MAX = 1 << 20
"""Most bytes of reports that the leader has not taken."""

Connect = Callable[[str], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
"""Connects to the HOST:PORT of a leader's listener of replicas. Raises: OSError; SSLCertVerificationError; NotAccepted."""


class NotAccepted(OSError):
    """The leader does not accept this node's certificate."""


class Leads(Protocol):
    """What a link needs of its leader: a part of ``Member``."""

    @property
    def repl(self) -> str: ...


class EndReason(Enum):
    BYE = "the leader has ended its term, everything before is applied"
    LOST = "the connection could not be made, or was lost"
    REFUSED = "the leader has refused this replica"
    WRONG_PEER = "what answers there is not a node of this cluster"
    FENCED = "the leader is of an older epoch than this replica has promised"


@dataclass(frozen=True, slots=True)
class FollowEnd:
    """Why a link ended. ``detail`` is for people. ``code``: for REFUSED and FENCED that of the leader's answer; for TLS errors
    WRONG_PEER or BAD_CERTIFICATE."""

    reason: EndReason
    detail: str
    code: str | None = None


M = TypeVar("M", Lead, StreamFrom)
E = TypeVar("E", bound=Exception)


class _Ended(Exception):
    """Raised to end the link in an orderly way."""

    def __init__(self, end: FollowEnd) -> None:
        super().__init__(end.detail)
        self.end = end


class FollowerLink:
    """The links of one directory to the leaders of its group, one at a time."""

    def __init__(
        self, *, me: Identity, file: ReplicaFile, fs: FileSystem, root: str, clock: Clock, options: LinkOptions,
        offload: Offload, connect: Connect,
    ) -> None:  # fmt: skip
        """
        Args:
            file: the directory's ``replica.json``, whose ``promised`` and ``copying`` are changed here.
            offload: a small pool of threads for syncs, digests and redo. It outlives every link.
        """
        self._me = me
        self._file = file
        self._fs = fs
        self._root = root
        self._clock = clock
        self._options = options
        self._offload = offload
        self._connect = connect
        self.digests = ContentDigests(fs, root, clock)
        """The digests of the directory's files."""
        self._following: _Following | None = None
        self._unsynced: set[str] | None = None  # what may not be on the disk yet; None: not known, as of a life before

    @property
    def state(self) -> str:
        """The state of the link, for people: "connecting", "comparing", "copying", "catching up", "following"; "" without a
        link."""
        return "" if self._following is None else self._following.state

    @property
    def clock_offset_s(self) -> float | None:
        """How many seconds this node's clock was ahead of the leader's at the last BEAT; None before the first."""
        stream = None if self._following is None else self._following.stream
        return None if stream is None else stream.clock_offset_s

    async def follow(self, leader: Leads, epoch: int) -> FollowEnd:
        """Join a leader and follow it until the link ends.

        ``epoch``: the leader's, as read from etcd; a leader of another epoch is not joined. When this returns, raises or was
        cancelled, the link does not touch the directory any more.

        Raises: OSError of this node's disk, after a report to the leader. DataDirectoryError when the topics are missing, as
        when their file system is not mounted: no copy is begun in its place.
        """
        assert self._following is None, "a directory follows one leader"
        try:
            async with asyncio.timeout(self._options.timeout_s):
                reader, writer = await self._connect(leader.repl)
        except ssl.SSLCertVerificationError as error:
            return FollowEnd(EndReason.WRONG_PEER, f"{leader.repl}: WRONG_PEER {reason_of(error)}", "WRONG_PEER")
        except NotAccepted as error:
            return FollowEnd(EndReason.REFUSED, f"{leader.repl}: BAD_CERTIFICATE {error}", "BAD_CERTIFICATE")
        except (OSError, TimeoutError) as error:
            why = "no answer" if isinstance(error, TimeoutError) else error
            return FollowEnd(EndReason.LOST, f"{leader.repl}: {why}")
        self._following = following = _Following(self, epoch, reader, writer)
        try:
            return await following.run()
        finally:
            self._following = None


class _Following:
    """One link to one leader."""

    def __init__(self, link: FollowerLink, epoch: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.stream: FollowerStream | None = None
        self._link = link
        self._spool: Spool | None = None
        self._epoch = epoch
        self._reader = reader
        self._writer = writer
        self._stop = StopFlag()
        self._handshake = HandshakeReader()
        self._reports: list[bytes] = []
        self._sends_reports = False
        self._read_since: float | None = None  # when the read began that waits
        self._steps_seen = -1
        self._stepped_at = 0.0

    @property
    def state(self) -> str:
        return "connecting" if self.stream is None else self.stream.phase.value

    async def run(self) -> FollowEnd:
        """Run the link. Raises: OSError of this node's disk, DataDirectoryError."""
        end: FollowEnd | None = None
        failure: OSError | DataDirectoryError | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._show_life())
                tasks.create_task(self._follow(tasks))
        except* _Ended as group:
            end = _first(group, _Ended).end
        except* ByeSaid:
            end = FollowEnd(EndReason.BYE, "the leader has ended its term")
        except* BadOperation as group:
            end = FollowEnd(EndReason.LOST, f"the leader broke the protocol: {group.exceptions[0]}")
        except* OSError as group:
            failure = _first(group, OSError)
        except* DataDirectoryError as group:
            failure = _first(group, DataDirectoryError)
        finally:
            try:
                await self._end()
            finally:
                if self.stream is not None:
                    self._link._unsynced = self.stream.unsynced if failure is None else None
                if failure is None:
                    self._writer.transport.abort()
        if failure is not None:
            if isinstance(failure, OSError):
                await self._tell(failure)
            self._writer.transport.abort()
            raise failure
        assert end is not None
        return end

    async def _end(self) -> None:
        """Wait until no thread touches the directory, cancelled or not."""
        if self.stream is None:
            if self._spool is not None:
                self._spool.close()
            return
        ending = asyncio.ensure_future(self.stream.end())
        cancelled: asyncio.CancelledError | None = None
        while not ending.done():
            try:
                await asyncio.wait([ending])
            except asyncio.CancelledError as error:
                cancelled = error
        ending.result()
        if cancelled is not None:
            raise cancelled

    async def _tell(self, failure: OSError) -> None:
        """Report a failure of this node's disk to the leader, if the leader still reads."""
        if self._sends_reports:
            self._send_now(Failed(0, failure.errno or 0))
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(ALIVE_S):
                    await self._writer.drain()
                    self._writer.close()
                    await self._writer.wait_closed()

    # -- the two tasks

    async def _show_life(self) -> None:
        """Send signs of life to the leader while this node's jobs make progress; end the link when the leader is silent."""
        link = self._link
        while True:
            slept_at = link._clock.monotonic()
            await asyncio.sleep(ALIVE_S)
            now = link._clock.monotonic()
            is_late = now - slept_at > 2 * ALIVE_S  # the loop has not read what came meanwhile
            if not is_late and self._read_since is not None and now - self._read_since > link._options.timeout_s:
                raise _lost(f"the leader has said nothing for {now - self._read_since:.1f} s")
            if (unsent := self._writer.transport.get_write_buffer_size()) > UNSENT_BYTES_MAX:
                raise _lost(f"the leader has not read {unsent} bytes of reports: is it hung?")
            if self._stop.steps != self._steps_seen or not self._stop.jobs:
                self._steps_seen, self._stepped_at = self._stop.steps, now
            if self.stream is not None and self.state == "following":
                continue  # it acknowledges BEATs
            if now - self._stepped_at < JOB_STALL_S:
                self._writer.write(encode_report(Alive()) if self._sends_reports else encode_message(Wait()))

    async def _follow(self, tasks: asyncio.TaskGroup) -> None:
        link, me = self._link, self._link._me
        self._stepped_at = link._clock.monotonic()
        self._writer.write(encode_message(Follow(
            VERSION, me.cluster, me.group, me.replica, me.name, link._file.record.promised, link._options.token
        )))  # fmt: skip
        lead = await self._next_message(Lead)
        self._check_epoch(lead.epoch)
        self._spool = spool = Spool(link._fs, link._root)

        def prepare() -> Manifest:
            check_usable(link._fs, link._root)
            note_mounted(link._fs, link._root)
            link._file.change(promised=self._epoch)
            spool.begin()
            link.digests.forget(link._file.record.damaged)
            return take_manifest(link.digests, self._stop)

        reading = tasks.create_task(self._read_to_stream())
        manifest = await run_on_thread(link._offload, prepare, self._stop)
        self._writer.write(encode_message(ManifestBytes(encode_manifest(manifest))))
        self._sends_reports = True
        begins = await reading
        self.stream = stream = FollowerStream(
            fs=link._fs, root=link._root, file=link._file, offload=link._offload, clock=link._clock, manifest=manifest,
            place=f"{self._epoch}-{lead.stream_id}", spool=spool, after=begins.seq, send=self._send, stop=self._stop,
            unsynced=link._unsynced,
        )  # fmt: skip
        tasks.create_task(stream.work())
        data = self._handshake.take_rest()
        while True:
            await stream.take(data)
            data = await self._read()

    async def _read_to_stream(self) -> StreamFrom:
        return await self._next_message(StreamFrom)

    def _check_epoch(self, epoch: int) -> None:
        promised = self._link._file.record.promised
        if epoch < promised:
            raise _Ended(FollowEnd(EndReason.FENCED, f"it leads epoch {epoch}, and this replica has promised {promised}"))
        if epoch != self._epoch:
            raise _lost(f"it leads epoch {epoch}, and etcd has said {self._epoch}")

    # -- bytes

    async def _next_message(self, kind: type[M]) -> M:
        """The next message, which must be of a given kind. Raises: _Ended; BadOperation."""
        while True:
            message = self._handshake.next_message()
            if message is None:
                self._handshake.receive(await self._read())
            elif isinstance(message, Refused):
                reason = EndReason.FENCED if message.code == "FENCED" else EndReason.REFUSED
                raise _Ended(FollowEnd(reason, f"{message.code} {message.text}", message.code))
            elif isinstance(message, kind):
                return message
            elif not isinstance(message, Wait):
                raise BadOperation(f"{type(message).__name__} where {kind.__name__} is expected")

    async def _read(self) -> bytes:
        """Read the leader's next bytes. Raises: _Ended."""
        self._read_since = self._link._clock.monotonic()
        try:
            data = await self._reader.read(READ_BYTES)
        except OSError as error:
            raise _lost(f"the connection failed: {error.strerror or error}") from None
        finally:
            self._read_since = None
        if not data:
            raise _lost("the leader has closed the connection")
        return data

    def _send(self, report: Report) -> None:
        """Send a report at the end of this pass of the event loop, together with others."""
        if not self._reports:
            asyncio.get_running_loop().call_soon(self._flush)
        self._reports.append(encode_report(report))

    def _flush(self) -> None:
        data = b"".join(self._reports)
        self._reports.clear()
        if data and not self._writer.transport.is_closing():
            self._writer.write(data)

    def _send_now(self, report: Report) -> None:
        self._send(report)
        self._flush()


def _lost(detail: str) -> _Ended:
    return _Ended(FollowEnd(EndReason.LOST, detail))


def _first(group: BaseExceptionGroup[E], kind: type[E]) -> E:
    """The first exception in a group, however deeply nested."""
    error = group.exceptions[0]
    if isinstance(error, BaseExceptionGroup):
        return _first(error, kind)
    assert isinstance(error, kind)
    return error
