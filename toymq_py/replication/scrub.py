"""The scrub of a copy: reads every sealed segment at intervals, so that bit rot is found while another copy has the records.

Contract: replication.md, section 11 ("a page rots"); ADR 0121. The scanner decides what is damaged; this file decides when and
how fast to read, and remembers the damaged segments for which another copy was asked. Belongs to the event loop; files are read
on threads.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, suppress
from dataclasses import replace
from itertools import islice

from toymq_py.replication.disk_calls import Offload, StopFlag, run_on_thread
from toymq_py.replication.replica_file import DAMAGED_MAX, ReplicaFile
from toymq_py.storage import offsets
from toymq_py.storage.fs import FileSystem
from toymq_py.storage.scanner import rescan
from toymq_py.storage.segment_heads import list_segment_files
from toymq_py.storage.segment_inventory import InventoryEntry, SegmentStatus, segment_inventory
from toymq_py.storage.topic_directories import topic_names

logger = logging.getLogger("toymq_py.replication")

BYTES_PER_S = 4 << 20
"""The speed of reading: a few percent of a core with small records, 350 GB a day."""
STEP_S = 0.05
"""The longest step of a job, which ends after it when its outcome is not wanted any more: a failover waits for it."""
RETRY_S = 60.0
"""The delay after an error of the disk that says nothing of a segment."""


class Scrub:
    """The scrub of one directory, whether its node leads or follows."""

    def __init__(self, fs: FileSystem, root: str, offload: Offload, file: ReplicaFile, interval_s: float) -> None:
        """``interval_s``: the pause between two rounds; 0: no rounds."""
        self._fs = fs
        self._root = root
        self._offload = offload
        self._file = file
        self._interval_s = interval_s
        self.found: dict[str, int] = {}
        """The damaged segments of this copy by path, and where the damage of each begins."""
        self.read_bytes = 0

    async def until_new_damage(self) -> str:
        """Read all sealed segments, round after round. Returns: a damaged segment for which no other copy was asked
        (``note``)."""
        if not self._interval_s:
            await asyncio.Event().wait()
        while True:
            try:
                seen: set[str] = set()
                async with aclosing(self._round()) as looked_at:
                    async for path, position in looked_at:
                        if position is not None:
                            seen.add(path)
                            self._damaged(path, position)
                            if path not in self._file.record.damaged:
                                return path
                        elif path in self.found or path in self._file.record.damaged:
                            self._whole([path])
                self._whole([path for path in {*self.found, *self._file.record.damaged} if path not in seen])  # those removed
            except OSError as error:
                logger.warning("the scrub of this copy goes on in %g s: %s", RETRY_S, error)
                await asyncio.sleep(RETRY_S)
                continue
            await asyncio.sleep(self._interval_s)

    def note(self, path: str) -> None:
        """Note that another copy is asked for a segment. It is asked only once, as its segment may be damaged, too."""
        self._file.change(damaged=(*self._file.record.damaged, path)[-DAMAGED_MAX:])

    def _damaged(self, path: str, position: int) -> None:
        if path not in self.found:
            logger.error("%s is damaged at %d in this copy", path, position)
        self.found[path] = position

    def _whole(self, paths: list[str]) -> None:
        for path in paths:
            if self.found.pop(path, None) is not None:
                logger.info("%s is whole again", path)
        kept = tuple(path for path in self._file.record.damaged if path not in paths)
        self._file.change(damaged=kept)

    async def _round(self) -> AsyncGenerator[tuple[str, int | None], None]:
        """Yield the sealed segments, each with the position of its first damage or None. Raises: OSError."""
        stop = StopFlag()
        for topic in await run_on_thread(self._offload, lambda: topic_names(self._fs, self._root), stop):
            parts = self._parts(topic, stop)
            while (each := await run_on_thread(self._offload, lambda: self._next(parts, stop), stop)) is not None:  # noqa: B023
                if each.status in (SegmentStatus.PART, SegmentStatus.UNREADABLE):
                    yield each.segment.path.removeprefix(f"{self._root}/"), _first_damage(each)

    def _parts(self, topic: str, stop: StopFlag) -> Iterator[InventoryEntry]:
        """Scan the segments of a topic, as ``verify`` does, at ``BYTES_PER_S`` at most. Runs on a thread."""
        path = f"{self._root}/topics/{topic}"
        files = list_segment_files(self._fs, path)
        loaded = offsets.load(self._fs, path)  # after the files: retention tells the offsets before it removes
        files = replace(files, first_id_known=loaded.first_id_known)

        def progress(size: int) -> None:
            self.read_bytes += size
            left_s = size / BYTES_PER_S
            while left_s > 0:
                stop.check()
                time.sleep(min(left_s, STEP_S))
                left_s -= STEP_S

        state = loaded.state
        parts = segment_inventory(self._fs, path, files, state.first_id, state.next_id, sidecars=False, progress=progress)
        yield from islice(parts, max(len(files.bases) - 1, 0))  # the last one is written to: recovery judges it

    def _next(self, parts: Iterator[InventoryEntry], stop: StopFlag) -> InventoryEntry | None:
        """Scan the next segment, on a thread. A topic or segment that was removed meanwhile is not damaged. A segment that
        seems damaged is read once more, since the read may have been at fault."""
        while True:
            stop.check()
            try:
                each = next(parts, None)
            except FileNotFoundError:
                return None
            if each is None or each.error is not None or not each.segment.damages:
                if each is not None and isinstance(each.error, FileNotFoundError):
                    continue
                return each
            with suppress(FileNotFoundError):
                each.segment.damages = rescan(self._fs, each.segment, each.segment.next_id).segment.damages
                return each


def _first_damage(each: InventoryEntry) -> int | None:
    if each.error is not None:
        return 0
    return min((damage.position for damage in each.segment.damages), default=None)
