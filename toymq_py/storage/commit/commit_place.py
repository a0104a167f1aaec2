"""Where a batch is written and synced: on the event loop or on a sync thread (``--commit``).

Contract: storage.md, "Append and group commit"; ADR 0093. A rule without a thread, a file or a loop. Belongs to the loop.

A commit on the loop saves two hand-overs between threads, a third of what a lone publisher waits for; but as long as the disk
takes, the loop serves no other session. So ``auto`` commits there only what is small, while nothing else waits for the loop,
and while the disk has been quick for long. Disks have a slow sync now and then: one of a few milliseconds costs trust, one that
took long costs all of it (ADR 0116).
"""

from collections.abc import Callable

from toymq_py.config.options import CommitMode

RECORDS_MAX = 8
"""Batches of more records have several publishers waiting: what they send next is parsed while a sync thread waits."""
BYTES_MAX = 64 * 1024
QUICK_S = 0.001
"""A commit that takes longer is slow: the hand-over to a thread costs little beside it."""
LONG_S = 0.005
"""A commit that takes longer is one that others notice."""
TRUST_AFTER = 64
"""So many quick commits must be there before the loop waits for one."""
TRUST_AFTER_MAX = 4096
SLOW_COSTS = 32
"""A slow commit takes the trust of so many quick ones: with more slow ones than one in 32 the loop waits for none."""
SPARE = 64
"""Trust beyond what is needed: two slow commits in a row leave the next one on the loop."""


class CommitPlace:
    """Decides for each commit of a broker. ``begun`` and ``ended`` stand around every one."""

    def __init__(self, mode: CommitMode, held: Callable[[float], None] = lambda seconds: None) -> None:
        """``held`` is called with the seconds for which a commit held the loop."""
        self._mode = mode
        self._held = held
        self.crowded: Callable[[], bool] = lambda: False
        """Whether sessions wait for their turn on the loop."""
        self._due = 0  # logs with a batch to start at the end of this pass of the loop
        self._on_threads = 0  # batches
        self._trust = 0  # in quick commits
        self._since_long = 0  # commits
        self._trust_after = TRUST_AFTER

    def announce(self) -> None:
        """A log will start a batch at the end of this pass."""
        self._due += 1

    def start(self) -> None:
        """An announced batch is being started, or there is none."""
        self._due -= 1

    def is_loop(self, records: int, size: int) -> bool:
        """Whether a batch that only appends to an open file is committed on the loop.

        Args:
            records: how many.
            size: bytes of all.
        """
        if self._mode != "auto":
            return self._mode == "inline"
        return (
            self._trust >= self._trust_after
            and records <= RECORDS_MAX
            and size <= BYTES_MAX
            and not self._due
            and not self._on_threads
            and not self.crowded()
        )

    def begun(self) -> None:
        """A sync thread gets a batch."""
        self._on_threads += 1

    def ended(self, seconds: float, *, on_loop: bool) -> None:
        """A batch was written and synced, or failed, in ``seconds``.

        One that took long without a sign held the loop: before the next on the loop, twice as many must be quick.
        """
        if on_loop:
            self._held(seconds)
        else:
            self._on_threads -= 1
        if seconds > LONG_S:
            self._trust = self._since_long = 0
            if on_loop:
                self._trust_after = min(2 * self._trust_after, TRUST_AFTER_MAX)
            return
        self._since_long += 1
        if seconds > QUICK_S:
            self._trust = max(0, self._trust - SLOW_COSTS)
        elif self._trust < self._trust_after + SPARE:
            self._trust += 1
        if self._since_long == 16 * self._trust_after and self._trust_after > TRUST_AFTER:
            self._since_long = 0
            self._trust_after //= 2
            self._trust = min(self._trust, self._trust_after + SPARE)
