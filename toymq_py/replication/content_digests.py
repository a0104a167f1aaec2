"""The digests of a directory's files, each read once and remembered as long as its file stays as it is.

A join compares all files of both copies by content (replication.md, section 6). To read all files at each join took too long: a
cluster of three that had lost its leader could store nothing for two seconds per GB. Only digests of files that the scrub reads
are kept from join to join, since bit rot does not change a file's stamp (ADR 0276). A digest is a BLAKE2b of 128 bits: a CRC-32
over frames that each end with their own CRC-32 does not depend on their content.

The content of a segment ends with its last byte that is not zero: reserved space does not count. The content of other files is
the whole file.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from toymq_py.clock import Clock
from toymq_py.replication.disk_calls import Offload, StopFlag, run_on_thread
from toymq_py.storage.fs import File, FileSystem, Stamp

logger = logging.getLogger("toymq_py.replication")

READ_BYTES = 1 << 20
SETTLED_NS = 2 * 10**9
"""The digest of a file that was written less than this ago is not remembered: a further write might not change its stamp, as
the clocks of file systems tick slowly."""
AHEAD_S = 30.0
"""The time between two searches for files whose digest is not known."""
AHEAD_BYTES_PER_S = 64 << 20
"""The speed at which a follower reads these files ahead of the next join, some 7 % of a core: a new leader and its followers
were followers before."""
LEADER_AHEAD_BYTES_PER_S = 8 << 20
"""The speed at which a leader, which has other work, reads them ahead, for followers that come back to it."""
LEFT_ALONE_NS = 60 * 10**9
"""A file that was written less than this ago is not read ahead, such as the segment that grows, or offsets."""


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of a copy. ``size``: the bytes of its content; ``length``: the bytes of the file; ``digest``: of the content."""

    path: str
    size: int
    length: int
    digest: str


class Read(NamedTuple):
    """The result of reading a file. ``prefix``: the digest of its first bytes, as many as were asked for; None if its content
    is shorter, or the last of these bytes is reserved space."""

    entry: FileEntry
    prefix: str | None


def has_records(path: str) -> bool:
    """Whether a file is a segment, even one of another log (``.log.foreign``), and so may have clients' records."""
    return path.endswith((".log", ".log.foreign"))


class ContentDigests:
    """The digests of the files below one directory, by relative path. Threads may share an instance: at worst two of them read
    the same file."""

    def __init__(self, fs: FileSystem, root: str, clock: Clock) -> None:
        self.fs = fs
        self.root = root
        self._clock = clock
        self._known: dict[str, tuple[Stamp, FileEntry]] = {}

    def known(self, path: str) -> FileEntry | None:
        """Return the remembered entry of a file; None when there is none, or the file has changed. Raises: OSError."""
        found = self._known.get(path)
        if found is None or found[0] != self.fs.stamp(f"{self.root}/{path}"):
            return None
        return found[1]

    def entry(self, path: str, stop: StopFlag) -> FileEntry:
        """Return the entry of a file, which is read when it is not remembered. Blocks. Raises: OSError; Stopped."""
        return self.known(path) or self.read(path, stop).entry

    def read(self, path: str, stop: StopFlag, prefix: int = 0) -> Read:
        """Read a whole file. Returns: its entry, and the digest of its first ``prefix`` bytes. Blocks. Raises: OSError;
        Stopped."""
        file = self.fs.open(f"{self.root}/{path}", write=False)
        try:
            stamp = file.stamp()
            digest = _ContentDigest(reserves=has_records(path))
            for data in _pieces(file, prefix, stop):
                digest.update(data)
            of_prefix = digest.hex() if digest.size == prefix else None
            for data in _pieces(file, None, stop, start=digest.length):
                digest.update(data)
            entry = FileEntry(path, digest.size, digest.length, digest.hex())
            if file.stamp() == stamp and self._is_settled(stamp, SETTLED_NS):
                self._known[path] = stamp, entry
            return Read(entry, of_prefix)
        finally:
            file.close()

    def _is_settled(self, stamp: Stamp, age_ns: int) -> bool:
        return self._clock.wall_ns() - stamp[3] > age_ns

    def forget(self, paths: Iterable[str]) -> None:
        """Forget the digests of these files, so that they are read again: bit rot may have changed them without a new stamp."""
        for path in paths:
            self._known.pop(path, None)

    def keep(self, paths: Collection[str]) -> None:
        """Forget the digests of files that are not among ``paths``."""
        self.forget(self._known.keys() - set(paths))

    async def read_ahead(
        self, offload: Offload, list_files: Callable[[], list[str]], bytes_per_s: Callable[[], int]
    ) -> None:
        """Read the files whose digests are not known, slowly, until cancelled. ``list_files`` returns all paths, and blocks."""
        stop = StopFlag()
        while True:
            await asyncio.sleep(AHEAD_S)
            try:
                paths = await run_on_thread(offload, lambda: self._unknown(list_files()), stop)
                for path in paths:
                    size = await run_on_thread(offload, lambda: self._read_one(path, stop), stop)  # noqa: B023
                    await asyncio.sleep(size / bytes_per_s())
            except OSError as error:
                logger.warning("the files of this copy are not read ahead of its next join: %s", error)

    def _unknown(self, paths: list[str]) -> list[str]:
        self.keep(paths)
        return [path for path in paths if self._is_worth_reading(path)]

    def _is_worth_reading(self, path: str) -> bool:
        try:
            stamp = self.fs.stamp(f"{self.root}/{path}")
        except OSError:  # gone, or the join will tell
            return False
        known = self._known.get(path)
        return (known is None or known[0] != stamp) and self._is_settled(stamp, LEFT_ALONE_NS)

    def _read_one(self, path: str, stop: StopFlag) -> int:
        """Read one file. A missing or unreadable file is skipped here, since a join reports it. Returns: how many bytes were
        read."""
        try:
            return self.read(path, stop).entry.length
        except OSError:
            return 0


def _pieces(file: File, size: int | None, stop: StopFlag, start: int = 0) -> Iterator[bytes]:
    """The bytes of a file, to its end or to its byte ``size``."""
    at = start
    while size is None or at < size:
        stop.check()
        data = file.pread(READ_BYTES if size is None else min(READ_BYTES, size - at), at)
        if not data:
            return
        yield data
        at += len(data)


class _ContentDigest:
    """Computes the digest of a file's content, and where the content ends."""

    def __init__(self, *, reserves: bool) -> None:
        """``reserves``: whether zeros at the end are reserved space."""
        self.size = 0
        self.length = 0
        self._reserves = reserves
        self._hashing = hashlib.blake2b(digest_size=16)

    def update(self, data: bytes) -> None:
        content = data.rstrip(b"\0") if self._reserves else data
        if content:
            for zeros in _zeros(self.length - self.size):
                self._hashing.update(zeros)
            self._hashing.update(content)
            self.size = self.length + len(content)
        self.length += len(data)

    def hex(self) -> str:
        return self._hashing.hexdigest()


def _zeros(count: int) -> Iterable[bytes]:
    while count > 0:
        step = min(count, READ_BYTES)
        yield bytes(step)
        count -= step
