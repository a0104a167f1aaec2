"""Debug lines that say why messages come again without a NACK: docs/operations.md, "A message came twice".

Costs nothing while the logger does not show them.
"""

import logging
from collections.abc import Sequence

from toymq_py.consumer import Consumer, Lessee
from toymq_py.records import IdRange

logger = logging.getLogger("toymq_py.topic")

RANGES_MAX = 100
"""Most ranges of one line: where every second message is acked, each lease is a range."""


def log_expiring(topic: str, consumer: Consumer, now: float) -> None:
    """Log leases that end at ``now``, which is monotonic, without an answer. Call it before they end."""
    if logger.isEnabledFor(logging.DEBUG) and (ranges := consumer.expiring(now)):
        ended = "%s, consumer %s: the leases of %s ended, and nothing had settled them"
        logger.debug(ended, topic, consumer.name, _ids(ranges))


def log_lost(topic: str, consumer: Consumer, lessee: Lessee) -> None:
    """Log the messages of a session that leaves, or ends its subscription. Call it before they are given back."""
    if logger.isEnabledFor(logging.DEBUG) and (ranges := consumer.inflight_to(lessee)):
        logger.debug("%s, consumer %s: a session ended and had %s", topic, consumer.name, _ids(ranges))


def _ids(ranges: Sequence[IdRange]) -> str:
    """Format id ranges as commands write them: ``7,9-12``."""
    named = ",".join(f"{first}-{last}" if first < last else f"{first}" for first, last in ranges[:RANGES_MAX])
    return named if len(ranges) <= RANGES_MAX else f"{named} and {len(ranges) - RANGES_MAX} more ranges"
