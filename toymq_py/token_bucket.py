"""A rate limit with bursts (token bucket)."""

from toymq_py.clock import Clock


class TokenBucket:
    """Allows ``burst`` events at once, then ``per_s`` a second. Belongs to one thread."""

    __slots__ = ("_at", "_burst", "_clock", "_left", "_per_s")

    def __init__(self, clock: Clock, burst: int, per_s: float) -> None:
        self._clock = clock
        self._burst = burst
        self._per_s = per_s
        self._left = float(burst)
        self._at = clock.monotonic()

    def wait_s(self) -> float:
        """Seconds until a token is available; 0 when one is."""
        now = self._clock.monotonic()
        self._left = min(self._left + (now - self._at) * self._per_s, self._burst)
        self._at = now
        return max(1 - self._left, 0.0) / self._per_s

    def take(self) -> None:
        """Take a token. If none is available, the count goes below zero, and the next wait is longer."""
        self._left -= 1
