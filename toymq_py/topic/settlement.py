"""ACK, NACK and TOUCH of many ids at once, with an answer for each. Contract: protocol.md, "Subscribe and acknowledge"."""

from collections.abc import Callable, Sequence

from toymq_py.consumer import Consumer
from toymq_py.errors import BadArgument
from toymq_py.failure import Failure
from toymq_py.names import is_dead_letters
from toymq_py.records import IdRange
from toymq_py.topic.deliverer import ChannelContext, ranges_of, stretches_of

Settle = Callable[[Sequence[IdRange]], int]
"""Settles, or otherwise changes, messages of one consumer. Returns: how many."""


def ack_each(consumer: Consumer, ids: Sequence[int]) -> list[int]:
    """Ack deliveries with the effect of one ``ack`` for each. Returns: for each id 1 when this acked it, else 0."""
    counts: list[int] = []
    for first, last in [span for ascending in stretches_of(ids) for span in ranges_of(ascending)]:
        if first < last and consumer.has_delivered(first, last):
            consumer.ack(((first, last),))
            counts += [1] * (last + 1 - first)
        else:
            counts += [consumer.ack(((msg_id, msg_id),)) for msg_id in range(first, last + 1)]
    return counts


def nack(
    consumer: Consumer, context: ChannelContext, ids: Sequence[IdRange], delay_s: float | None, *, dead: bool,
    failure: Failure | None,
) -> int:  # fmt: skip
    """End leases without an ack; see ``Topic.nack``."""
    if dead and is_dead_letters(context.topic):
        raise BadArgument(f"{context.topic} holds dead letters and has no dead-letter topic of its own")
    if failure is not None:
        consumer.note_failure(ids, (failure, context.clock.wall_ns() // 1_000_000), context.failure_budget, dead=dead)
    return consumer.give_up(ids) if dead else consumer.nack(ids, context.clock.monotonic(), delay_s, context.policy)


def settle_each(
    consumer: Consumer, ids: Sequence[int], lease: int | None, settle: Settle, *, dead: bool = False
) -> list[int]:
    """Call ``settle`` once for each ascending stretch of ``ids``, with those that are leased under the number ``lease``; with
    None, under any, and with ``dead`` also those that wait for redelivery. Returns: for each id 1 when ``settle`` got it, else
    0. Raises: as ``settle``."""
    counts: list[int] = []
    for ascending in stretches_of(ids):
        ranges = ranges_of(ascending)
        leased = consumer.rejectable(ranges) if dead and lease is None else consumer.leased_under(ranges, lease)
        if settle(leased) == len(ascending):
            counts += [1] * len(ascending)
        else:
            taken = {msg_id for first, last in leased for msg_id in range(first, last + 1)}
            counts += [int(msg_id in taken) for msg_id in ascending]
    return counts
