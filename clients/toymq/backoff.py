"""Exponential backoff with full jitter, so that clients do not all reconnect at once after an outage."""

from random import Random

from toymq_py.errors import ConfigError


class Backoff:
    """The random delays between reconnect attempts during one outage. Call ``reset`` when the outage is over."""

    def __init__(self, min_s: float, max_s: float, random: Random) -> None:
        """
        Args:
            min_s: upper bound of the first delay, seconds; it doubles with every attempt.
            max_s: upper bound of every delay, seconds.

        Raises: ConfigError.
        """
        if not 0 < min_s <= max_s:
            raise ConfigError(f"invalid backoff {min_s:g} to {max_s:g} s: write 0 < backoff_min_s <= backoff_max_s")
        self._min_s, self._max_s, self._random = min_s, max_s, random
        self._bound_s = min_s

    def next_s(self, max_s: float | None = None) -> float:
        """Return a random delay from 0 to the current bound, and double the bound. ``max_s``: a lower maximum for this
        delay."""
        max_s = self._max_s if max_s is None else min(max_s, self._max_s)
        bound_s, self._bound_s = min(self._bound_s, max_s), min(self._bound_s * 2, max_s)
        return self._random.uniform(0, bound_s)

    def reset(self) -> None:
        self._bound_s = self._min_s
