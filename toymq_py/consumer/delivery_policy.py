"""Visibility timeout and NACK backoff. Times in seconds, no clock.

Contract: delivery.md, "Visibility timeout" and "NACK".
"""

from dataclasses import dataclass

_DOUBLINGS_MAX = 64  # 1 ms doubled so often is beyond ten years; the float never overflows


@dataclass(frozen=True, slots=True)
class DeliveryPolicy:
    """A topic's ``visibility``, ``nack_backoff_min`` and ``nack_backoff_max``, in seconds."""

    visibility_s: float = 30.0
    nack_backoff_min_s: float = 0.1
    nack_backoff_max_s: float = 30.0

    def backoff_s(self, attempt: int) -> float:
        """Backoff after this attempt failed: it doubles from the minimum to the maximum."""
        doublings = min(max(attempt - 1, 0), _DOUBLINGS_MAX)
        return min(self.nack_backoff_min_s * 2.0**doublings, self.nack_backoff_max_s)
