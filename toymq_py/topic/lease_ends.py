"""Leases that end without an answer: by their time, or with their session. Counts their messages, and says which they are in
debug lines of the logger: docs/operations.md, "A message came twice".

Costs nothing for each message; a line is made only while the logger shows it.
"""

import logging
from collections.abc import Sequence
from typing import Protocol

from toymq_py.consumer import Consumer, Lessee
from toymq_py.records import IdRange
from toymq_py.topic.deliverer import ChannelContext

logger = logging.getLogger("toymq_py.topic")

RANGES_MAX = 100
"""Most ranges of one line: where every second message is acked, each lease is a range."""


class Ticker(Protocol):
    """Ends what is due of a consumer, as ``Consumer.tick``."""

    def tick(self, now: float) -> bool: ...


def tick(consumer: Consumer, context: ChannelContext, now: float, instead: Ticker | None) -> bool:
    """End the leases and backoffs that are due at ``now``, which is monotonic. ``instead``: does it in place of the consumer.
    Returns: see ``Consumer.tick``."""
    if logger.isEnabledFor(logging.DEBUG) and (ranges := consumer.expiring(now)):
        ended = "%s, consumer %s: the leases of %s ended, and nothing had settled them"
        logger.debug(ended, context.topic, consumer.name, _ids(ranges))
    inflight = consumer.inflight
    ticked = consumer.tick(now) if instead is None else instead.tick(now)
    context.metrics.lease_expired_total += inflight - consumer.inflight
    return ticked


def leave(consumer: Consumer, context: ChannelContext, lessee: Lessee) -> None:
    """End the leases of a session that leaves, or ends its subscription."""
    if logger.isEnabledFor(logging.DEBUG) and (ranges := consumer.inflight_to(lessee)):
        logger.debug("%s, consumer %s: a session ended and had %s", context.topic, consumer.name, _ids(ranges))
    before = consumer.changes
    left = consumer.release(lessee)
    context.metrics.lease_left_total += left
    if left and consumer.changes > before:
        context.changed()


def _ids(ranges: Sequence[IdRange]) -> str:
    """Format id ranges as commands write them: ``7,9-12``."""
    named = ",".join(f"{first}-{last}" if first < last else f"{first}" for first, last in ranges[:RANGES_MAX])
    return named if len(ranges) <= RANGES_MAX else f"{named} and {len(ranges) - RANGES_MAX} more ranges"
