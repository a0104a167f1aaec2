"""Refuses publishing on a full disk (``--min-free-bytes``), and while a bucket is too far behind (``--tier-local-max``).

Contract: storage.md, "Append and group commit".
"""

import logging
from collections.abc import Callable

from toymq_py.clock import Clock
from toymq_py.errors import DiskLow, TierBehind
from toymq_py.storage.fs import FileSystem
from toymq_py.units import format_size

logger = logging.getLogger("toymq_py.storage")

LOW_CHECK_S = 0.1
"""How often the free space is checked while publishing is refused."""
FREE_SPACE_VALID_S = 0.02
"""How long a check of the free space is valid while publishing, far from the mark: it costs 20 µs of a commit's 200."""
FULL_UNTIL_BYTES = 1024 * 1024
"""Least free space behind a commit that found none: a publish of the usual size fits again, with a new segment for it."""
LOW_REPORT_S = 10.0
"""How often retention is asked to make room while the disk is low."""


class SpaceGuard:
    """Refuses publishing for all topics of a file system before it is full (``--min-free-bytes``).

    The reserve is there for acks, offsets and draining. Publishing resumes when twice ``--min-free-bytes`` are free.
    """

    def __init__(self, fs: FileSystem, path: str, min_free_bytes: int, clock: Clock) -> None:
        self._fs = fs
        self._path = path
        self.min_free_bytes = min_free_bytes
        self._clock = clock
        self.low = False
        """Whether publishing is refused."""
        self._disk_low = False
        self._behind: str | None = None
        self._checked_at = -LOW_CHECK_S
        self._near = False
        self._credit = 0  # bytes that may be written before the next look
        self._check_at = 0.0
        self._overflowed_bytes: int | None = None
        self._reported_at: float | None = None
        self.on_change: list[Callable[[], None]] = []
        """Called on the loop when publishing begins or ceases to be refused; ``low`` says which."""
        self.on_low: Callable[[], None] = lambda: None
        """Called on the loop when the disk gets low, and again from time to time while it is."""

    def free_bytes(self) -> int:
        """Free space of the file system. A disk that does not answer does not count as full: the write itself will show it."""
        try:
            return self._fs.free_bytes(self._path)
        except OSError:
            return 1 << 62

    def check(self, size: int) -> bool:
        """Whether there is room for ``size`` bytes. Called on a sync thread before the write.

        Near ``--min-free-bytes`` it asks the disk each time; far from it, an answer is used for a moment, and for a part of the
        free space.
        """
        if self.min_free_bytes <= 0:
            return True
        now = self._clock.monotonic()
        self._credit -= size
        if self._credit >= 0 and now < self._check_at:
            return True
        free = self.free_bytes()
        self._near = free < 2 * self.min_free_bytes
        self._credit = 0 if self._near else (free - self.min_free_bytes) // 16
        self._check_at = now + FREE_SPACE_VALID_S
        return free >= self.min_free_bytes

    def report_low(self) -> None:
        """Report a low disk to all topics, idle ones too. Called on the loop after a commit."""
        now = self._clock.monotonic()
        if self._near and (self._reported_at is None or now - self._reported_at >= LOW_REPORT_S):
            self._reported_at = now
            self.on_low()

    def look(self) -> None:
        """Check the free space without a commit, and report a low disk. Called on the loop now and then."""
        self._near = self._near or self.getting_low()
        self.report_low()

    def refuse(self) -> None:
        """Begin to refuse publishes: a commit found too little space."""
        if not self._disk_low:
            self._disk_low = True
            self._checked_at = self._clock.monotonic()
            logger.error("%s: publishing is refused", self._low())
            self._reported_at = self._checked_at
            self.on_low()
            self._tell()

    def fall_behind(self, why: str | None) -> None:
        """Refuse publishes since too much is missing in the bucket of ``--tier``; None ends that. Called on the loop."""
        if why is None and self._behind is not None:
            logger.warning("the bucket has caught up: publishing resumes")
        elif why is not None and self._behind is None:
            logger.error("%s: publishing is refused", why)
        self._behind = why
        self._tell()

    @property
    def behind(self) -> str | None:
        """Why publishes are refused because the bucket is behind; None when they are not."""
        return self._behind

    def _tell(self) -> None:
        low = self._disk_low or self._behind is not None
        if low is not self.low:
            self.low = low
            for call in list(self.on_change):
                call()

    def refuses(self) -> bool:
        """Whether a publish would be refused now; asks the disk no more often than ``is_low``."""
        return self.is_low() or self._behind is not None

    def is_low(self) -> bool:
        """Whether the disk is too full for a publish. Asks the disk at most once in ``LOW_CHECK_S``, also without a publish."""
        now = self._clock.monotonic()
        if (self._disk_low or self.min_free_bytes > 0) and now - self._checked_at >= LOW_CHECK_S:
            self._checked_at = now
            free = self.free_bytes()
            if free < self.min_free_bytes:
                self.refuse()
            elif self._disk_low and free >= 2 * self.min_free_bytes:
                self._disk_low = False
                logger.warning("space is back: publishing resumes")
                self._tell()
        return self._disk_low

    def overflowed(self, size: int) -> None:
        """Note that a commit of ``size`` bytes found no space, although ``--min-free-bytes`` seemed to be free. Called on the
        loop."""
        self._overflowed_bytes = size

    def fitted(self) -> None:
        """Note that a commit found space again. Called on the loop."""
        self._overflowed_bytes = None

    def is_full(self) -> bool:
        """Whether the last commits found no space, and less than twice what they needed is free now; asks the disk. It does not
        refuse publishes: one that fits is accepted. A used-up quota does not show in the free space, and is not reported
        here."""
        if self._overflowed_bytes is not None and self.free_bytes() >= max(2 * self._overflowed_bytes, FULL_UNTIL_BYTES):
            self._overflowed_bytes = None
        return self._overflowed_bytes is not None

    def getting_low(self) -> bool:
        """Whether less than twice ``--min-free-bytes`` is free: then retention removes segments at once."""
        return self._disk_low or (self.min_free_bytes > 0 and self.free_bytes() < 2 * self.min_free_bytes)

    def admit(self) -> None:
        """Check for space before an append, without asking the disk: commits notice when it gets low. Raises: DiskLow,
        TierBehind."""
        if self.low and self.refuses():
            raise self.refusal()

    def admit_topic(self) -> None:
        """Check for space before a publish creates a topic: asks the disk, since no commit has. Raises: DiskLow, TierBehind."""
        if self.refuses():
            raise self.refusal()

    def refusal(self) -> DiskLow | TierBehind:
        if self._behind is not None and not self._disk_low:
            return TierBehind(f"{self._behind}; publish later")
        return DiskLow(f"{self._low()}; publish later")

    def _low(self) -> str:
        return f"less than {format_size(self.min_free_bytes)} are free (--min-free-bytes)"
