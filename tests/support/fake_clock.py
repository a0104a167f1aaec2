"""A clock for tests, which stands still until it is told to move. Implements ``toymq_py.clock.Clock``."""

NS_PER_S = 1_000_000_000
EPOCH_NS = 1_700_000_000 * NS_PER_S  # any moment in the past will do; not 0, which is a valid time of its own


class FakeClock:
    """A fake monotonic clock and wall clock. ``advance`` moves both; only the wall clock can jump, as when a machine's time is
    set."""

    __slots__ = ("_monotonic_ns", "_wall_ns")

    def __init__(self, wall_ns: int = EPOCH_NS, monotonic_s: float = 1000.0) -> None:
        self._wall_ns = wall_ns
        self._monotonic_ns = round(monotonic_s * NS_PER_S)  # whole numbers: a million small steps do not drift

    def wall_ns(self) -> int:
        return self._wall_ns

    def monotonic(self) -> float:
        return self._monotonic_ns / NS_PER_S

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        if seconds < 0:
            raise ValueError(f"time does not run backwards: {seconds}; jump_wall does")
        step_ns = round(seconds * NS_PER_S)
        self._wall_ns += step_ns
        self._monotonic_ns += step_ns

    def jump_wall(self, seconds: float) -> None:
        """Set the wall clock forward or, with a negative number, back."""
        self._wall_ns += round(seconds * NS_PER_S)
