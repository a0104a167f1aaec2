"""How long to wait before the next attempt: exponential, with full jitter, so that clients of a broker that comes back do not
come all at once."""

from random import Random

from toymq_py.errors import ConfigError


class Backoff:
    """Delays of one outage; ``reset`` when it is over."""

    def __init__(self, min_s: float, max_s: float, random: Random) -> None:
        """
        Args:
            min_s: upper bound of the first delay, seconds; it doubles with every attempt.
            max_s: upper bound of all.

        Raises: ConfigError.
        """
        if not 0 < min_s <= max_s:
            raise ConfigError("a backoff needs 0 < backoff_min_s <= backoff_max_s")
        self._min_s, self._max_s, self._random = min_s, max_s, random
        self._bound_s = min_s

    def next_s(self) -> float:
        """Anywhere from 0 to the bound, which doubles."""
        bound_s, self._bound_s = self._bound_s, min(self._bound_s * 2, self._max_s)
        return self._random.uniform(0, bound_s)

    def reset(self) -> None:
        self._bound_s = self._min_s
