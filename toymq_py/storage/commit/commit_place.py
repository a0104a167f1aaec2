"""Where a batch is written and synced: on the event loop or on a sync thread (``--commit``).

Contract: storage.md, "Append and group commit"; ADR 0093. A rule without a thread, a file or a loop. Belongs to the loop.

A commit on the loop saves two hand-overs between threads, a third of what a lone publisher waits for; but as long as the disk
takes, the loop serves no other session. So ``auto`` commits on the loop only small batches, while nothing else waits for the
loop, and while the disk is fast on average. A slow sync raises the average; after a very slow one, batches go to threads for a
while (ADR 0117).
"""

from collections.abc import Callable

from toymq_py.config.options import CommitMode

RECORDS_MAX = 8
"""With more records in a batch, or on average, several publishers wait: their next messages are parsed while a sync thread
waits."""
RECORDS_COUNTED_MAX = 64
"""Most records that a batch adds to that average, so that a lone publisher is soon alone after a crowd."""
BYTES_MAX = 64 * 1024
QUICK_S = 0.001
"""The average duration of commits above which the hand-over to a thread costs little beside the disk."""
COMMITS_AVERAGED = 32
"""The number of commits in the average: the newest has a weight of 1/32. So slow commits hold the loop for 32 times ``QUICK_S``
in all at most."""
LONG_S = 0.010
"""The duration from which a commit is long: clients notice it."""
TRUST_AFTER = 64
"""How many commits in a row must not be long before one runs on the loop."""
TRUST_AFTER_MAX = 4096


class CommitPlace:
    """Decides for each commit of a broker whether it runs on the loop. ``ended`` is called after each commit, ``begun`` before
    one on a sync thread."""

    def __init__(self, mode: CommitMode, held: Callable[[float], None] = lambda seconds: None) -> None:
        """``held`` is called with the seconds for which a commit held the loop."""
        self._mode = mode
        self._held = held
        self.crowded: Callable[[], bool] = lambda: False
        """Whether sessions wait for their turn on the loop."""
        self._due = 0  # logs with a batch to start at the end of this pass of the loop
        self._on_threads = 0  # batches
        self._mean_s, self._mean_records = QUICK_S, 0.0  # of the newest commits
        self._since_long = 0  # commits
        self._trust_after = TRUST_AFTER

    def announce(self) -> None:
        """Note that a log will start a batch at the end of this pass."""
        self._due += 1

    def start(self) -> None:
        """Note that an announced batch is being started, or is not needed."""
        self._due -= 1

    def is_loop(self, records: int, size: int) -> bool:
        """Whether a batch that only appends to an open file is committed on the loop.

        Args:
            records: the number of its records.
            size: their encoded bytes.
        """
        if self._mode != "auto":
            return self._mode == "inline"
        return (
            self._mean_s <= QUICK_S
            and self._mean_records <= RECORDS_MAX
            and self._since_long >= self._trust_after
            and records <= RECORDS_MAX
            and size <= BYTES_MAX
            and not self._due
            and not self._on_threads
            and not self.crowded()
        )

    def begun(self) -> None:
        """Note that a sync thread gets a batch."""
        self._on_threads += 1

    def ended(self, seconds: float, records: int, *, on_loop: bool) -> None:
        """Note that a batch of ``records`` records was written and synced, or failed, in ``seconds``.

        A long commit on the loop, which nothing had announced, held up everything else: after each one, twice as many commits
        in a row must not be long before the loop is used again.
        """
        if on_loop:
            self._held(seconds)
        else:
            self._on_threads -= 1
        self._mean_s += (min(seconds, LONG_S) - self._mean_s) / COMMITS_AVERAGED
        self._mean_records += (min(records, RECORDS_COUNTED_MAX) - self._mean_records) / COMMITS_AVERAGED
        if seconds > LONG_S:
            self._since_long = 0
            if on_loop:
                self._trust_after = min(2 * self._trust_after, TRUST_AFTER_MAX)
            return
        self._since_long += 1
        if self._since_long == 16 * self._trust_after and self._trust_after > TRUST_AFTER:
            self._trust_after //= 2
            self._since_long = self._trust_after
