"""The content of one file of the simulated disk, and what a power cut leaves of it.

Owns the page model (see sim_disk.py for its promises): a file is its durable content plus the operations since. Knows
nothing of names, handles, space or faults.
"""

import random
from collections.abc import Iterator
from itertools import count

PAGE_BYTES = 4096
SECTOR_BYTES = 512

Op = tuple[int, bytes | None]  # a write (offset, data), or a new size (size, None)


def pages(size: int) -> int:
    """Return how many pages ``size`` bytes need."""
    return -(-size // PAGE_BYTES)


_numbers = count(1)


class Inode:
    """A regular file: the content that readers see (``data``), the content on the platter (``durable``), and the operations
    between the two."""

    __slots__ = ("data", "durable", "handles", "limbo", "linked", "lock_owner", "number", "ops", "space_end", "writes")

    def __init__(self, content: bytes | bytearray = b"") -> None:
        self.number = next(_numbers)
        self.data = bytearray(content)
        self.durable = bytearray(content)
        self.ops: list[Op] = []  # since the last sync; the bytes are the caller's, not copied
        self.limbo: list[Op] = []  # failed to sync: older than ``ops``, never written by a later sync
        self.space_end = len(content)  # up to here blocks are taken
        self.handles = 0
        self.linked = True
        self.writes = 0  # how often it was written or resized: its time, which no clock of a test stops
        self.lock_owner: object | None = None  # the handle; sim_disk's business

    def stamp(self) -> tuple[int, int, int, int]:
        return 0, self.number, len(self.data), self.writes

    def hole(self, below: int) -> int | None:
        """Return the start of the first hole below an offset; None if there is none. A page of zeros counts as a hole, as in
        a file system that compresses."""
        starts = range(0, min(below, len(self.data)) - PAGE_BYTES + 1, PAGE_BYTES)
        return next((at for at in starts if not any(self.data[at : at + PAGE_BYTES])), None)

    def write(self, offset: int, data: bytes) -> None:
        self.ops.append((offset, data))
        self.writes += 1
        content = self.data
        if offset > len(content):
            content.extend(bytes(offset - len(content)))
        content[offset : offset + len(data)] = data

    def resize(self, size: int) -> None:
        """Cut, or extend with zeros."""
        if size != len(self.data):
            self.ops.append((size, None))
            self.writes += 1
            apply(self.data, [(size, None)])

    def sync(self) -> None:
        """Make durable what a sync writes: the pages written since the last attempt, and the size."""
        if self.limbo and self.ops:
            self._sync_around_limbo()
        else:
            apply(self.durable, self.ops)
        self.ops.clear()

    def sync_failed(self) -> None:
        self.limbo += self.ops
        self.ops.clear()

    def _sync_around_limbo(self) -> None:
        """Ensures pages of a failed sync stay uncertain unless they were written since. Assumes ``ops`` not empty:
        with nothing dirty a sync writes nothing, not even the size."""
        redirtied: set[int] = set()
        for offset, data in self.ops:
            if data is None:
                if offset % PAGE_BYTES:  # cutting inside a page zeroes its tail, which dirties it
                    redirtied.add(offset // PAGE_BYTES)
            else:
                redirtied.update(range(offset // PAGE_BYTES, pages(offset + len(data))))
        limbo: list[Op] = []
        for offset, data in self.limbo + self.ops:
            if data is None:
                limbo = [(at, part[: offset - at]) for at, part in limbo if part is not None and at < offset]
                apply(self.durable, [(offset, None)])
            else:
                limbo += [(p * PAGE_BYTES + at, part) for p, at, part in _fragments(offset, data) if p not in redirtied]
        apply(self.durable, [(len(self.data), None)])
        for page in redirtied:
            at = page * PAGE_BYTES
            self.durable[at : at + PAGE_BYTES] = self.data[at : at + PAGE_BYTES]
        self.limbo = limbo

    def after_crash(self, luck: "Luck", ordered: bool, torn_sectors: bool) -> bytes:
        """Return a content that this file may have after a power cut."""
        ops = self.limbo + self.ops
        if not ops:
            return bytes(self.durable)
        sizes = [len(self.durable)]
        for offset, data in ops:
            sizes.append(offset if data is None else max(sizes[-1], offset + len(data)))
        kept = luck.version(len(sizes))  # metadata of ops[:kept] is on the disk
        base = bytearray(self.durable)
        # Per page its versions in order, as (start, bytes, forced); a forced one cannot be lost.
        changes: dict[int, list[tuple[int, bytes, bool]]] = {}
        lost_from = -1  # pages from here on lie in space freed by a truncate that did not happen: -1 is none
        for number, (offset, data) in enumerate(ops):
            if data is not None:
                for page, start, part in _fragments(offset, data):
                    if lost_from < 0 or page < lost_from:
                        changes.setdefault(page, []).append((start, part, False))
            elif offset < sizes[number]:
                happened = number < kept
                edge, start = divmod(offset, PAGE_BYTES)
                first = pages(offset)
                if start:
                    changes.setdefault(edge, []).append((start, bytes(PAGE_BYTES - start), happened and ordered))
                if not ordered:
                    for page in set(changes) | set(range(first, pages(len(base)))):
                        if page >= first:
                            changes.setdefault(page, []).append((0, bytes(PAGE_BYTES), False))
                elif happened:
                    for page in [page for page in changes if page >= first]:
                        del changes[page]
                    del base[first * PAGE_BYTES :]
                else:
                    lost_from = first if lost_from < 0 else min(lost_from, first)
        for page in sorted(changes):
            content = luck.page(bytes(base[page * PAGE_BYTES : (page + 1) * PAGE_BYTES]), changes[page], torn_sectors)
            apply(base, [(page * PAGE_BYTES, content)])
        apply(base, [(sizes[kept], None)])
        return bytes(base)


def apply(content: bytearray, ops: list[Op]) -> None:
    for offset, data in ops:
        size = len(content)
        if offset > size:
            content.extend(bytes(offset - size))
        if data is not None:
            content[offset : offset + len(data)] = data
        elif offset < size:
            del content[offset:]


def _fragments(offset: int, data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """A write cut at page borders: (page, start within it, bytes)."""
    done = 0
    while done < len(data):
        page, start = divmod(offset + done, PAGE_BYTES)
        part = data[done : done + PAGE_BYTES - start]
        yield page, start, part
        done += len(part)


class Luck:
    """The random choices of one power cut. Its mood, how much survives, is drawn first, so that "all kept", "all lost" and
    everything between are frequent, not only where every single choice falls the same way."""

    __slots__ = ("_keep", "_random")

    def __init__(self, rng: random.Random) -> None:
        self._random = rng.random
        self._keep = (0.0, 0.1, 0.5, 0.5, 0.9, 1.0)[int(rng.random() * 6)]

    def version(self, count: int) -> int:
        """Choose one of ``count`` states in order of time: with the mood's probability the newest, else any older one."""
        if self._random() < self._keep:
            return count - 1
        return int(self._random() * (count - 1))

    def keeps(self) -> bool:
        return self._random() < self._keep

    def page(self, content: bytes, changes: list[tuple[int, bytes, bool]], torn_sectors: bool) -> bytes:
        """Return what one page holds after the cut, given its durable content and its changes in order."""
        page = content.ljust(PAGE_BYTES, b"\0")
        if torn_sectors and self._random() < 0.5:
            versions = [self._after(page, changes, count) for count in range(len(changes) + 1)]
            return b"".join(
                versions[self.version(len(versions))][at : at + SECTOR_BYTES]
                for at in range(0, PAGE_BYTES, SECTOR_BYTES)
            )
        return self._after(page, changes, self.version(len(changes) + 1))

    @staticmethod
    def _after(page: bytes, changes: list[tuple[int, bytes, bool]], count: int) -> bytes:
        held = bytearray(page)
        for number, (start, part, forced) in enumerate(changes):
            if number < count or forced:
                held[start : start + len(part)] = part
        return bytes(held)
