"""A leader's bulk copy: pieces of its live files, read without a lock, at a bounded rate.

Contract: replication.md, section 6. The pieces are from different moments; redoing the operations since the copy began makes it
consistent.
"""

import asyncio
import errno
import logging
import math
from collections.abc import Generator, Iterable, Iterator

from toymq_py.replication.content_digests import has_records
from toymq_py.replication.disk_calls import StopFlag
from toymq_py.replication.manifest import FilePlan
from toymq_py.replication.operations import PIECE_BYTES, Copy, Data, encode
from toymq_py.storage.fs import File, FileSystem

logger = logging.getLogger("toymq_py.replication")

BATCH_PIECES_MAX = 256
BATCH_BYTES = 4 << 20
"""Bytes that are sent at once. Each batch waits for a thread, for the event loop and for the follower: with 1 MiB these waits
took as long as the transfer."""
PAGE_BYTES = 4096


class Pace:
    """Limits the rate of all bulk copies together. Belongs to the event loop."""

    LATE_S = 0.5
    """A copy that is late by no more than this catches up, since reading and sending take their time; after a longer pause it
    does not."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at = -math.inf

    async def wait_for(self, size: int) -> None:
        """Wait for as long as ``size`` more bytes take at the rate."""
        now = asyncio.get_running_loop().time()
        begin = now if now - self._free_at > self.LATE_S else self._free_at
        self._free_at = begin + size / self._bytes_per_s
        if self._free_at > now:
            await asyncio.sleep(self._free_at - now)


def take_batch(pieces: Iterator[Copy]) -> list[Copy]:
    """The next pieces, about ``BATCH_BYTES`` together; empty at the end. Blocks."""
    batch: list[Copy] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece.data)
        if size >= BATCH_BYTES or len(batch) == BATCH_PIECES_MAX:
            break
    return batch


def frames_of(batch: Iterable[Copy]) -> list[Data]:
    """Encode pieces as frames. Runs on the thread that read them: the checksums would block the event loop for a
    millisecond."""
    return [part for piece in batch for part in encode(piece) if part]


def pieces_of(
    fs: FileSystem, root: str, files: Iterable[FilePlan], stop: StopFlag, *, whole: bool = False
) -> Generator[Copy, None, None]:
    """The pieces of the files in a plan. Blocks. A file that has vanished has none; its removal is in the stream.

    Args:
        whole: unreadable pages are an error, instead of being read as zeros.

    Raises: OSError; Stopped.
    """
    for each in files:
        stop.check()
        try:
            file = fs.open(f"{root}/{each.path}", write=False)
        except FileNotFoundError:
            continue
        try:
            yield from _pieces(file, each, stop, whole)
        finally:
            file.close()


def _pieces(file: File, plan: FilePlan, stop: StopFlag, whole: bool) -> Iterator[Copy]:
    """The pieces of a file up to its current length; later bytes are in the stream. Zeros at the end of a segment's piece are
    left out; the last byte is always sent, so that the length of the file is known."""
    path, at, end = plan.path, plan.size, file.size()
    reserves = has_records(path)
    copied = at
    while at < end:
        stop.check()
        length = min(PIECE_BYTES, end - at)
        data = file.pread(length, at) if whole else _read(file, length, at)
        if not data:
            break  # it was cut meanwhile
        content = data.rstrip(b"\0") if reserves else data
        if content:
            yield Copy(0, path, at, content)
            copied = at + len(content)
        at += len(data)
    if at > copied:
        yield Copy(0, path, at - 1, b"\0")
    elif copied == plan.size:
        yield Copy(0, path, copied, b"")  # makes an empty file


def _read(file: File, length: int, at: int) -> bytes:
    """Read bytes of a file, with zeros for unreadable pages: the copy is then as damaged as this file, and its checks detect
    it."""
    try:
        return file.pread(length, at)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
    pages: list[bytes] = []
    refused = 0
    for start in range(at, at + length, PAGE_BYTES):
        size = min(PAGE_BYTES, at + length - start)
        try:
            pages.append(file.pread(size, start))
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            refused += 1
            pages.append(bytes(size))
    logger.error("%s: the disk refuses %d pages behind %d; the copy has zeros there", file.path, refused, at)
    return b"".join(pages)
