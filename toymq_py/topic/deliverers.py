"""Chooses the deliverer of a consumer by its mode and its priorities. Belongs to the event loop."""

from collections.abc import Callable

from toymq_py.consumer import Consumer, KeyLanes, PriorityLanes
from toymq_py.consumer_options import Mode
from toymq_py.topic.deliverer import ChannelContext, Deliverer
from toymq_py.topic.keyed_deliverer import KEY_ORDER, KeyedDeliverer
from toymq_py.topic.priority_deliverer import PRIORITY_ORDER, PriorityDeliverer


def deliverer_for(mode: Mode, context: ChannelContext, consumer: Consumer, notify_ready: Callable[[], None]) -> Deliverer:
    """Make the deliverer of a mode. Messages that waited for their key or priority become ready, unless the new order makes
    them wait, too."""
    lanes = consumer.lanes
    if isinstance(lanes, PriorityLanes):
        consumer.lanes = None
        consumer.unsend(PRIORITY_ORDER, consumer.floor, consumer.cursor)
    if mode == "keyed":
        return KeyedDeliverer(context, consumer, notify_ready)
    if isinstance(lanes, KeyLanes):
        consumer.lanes = None
        consumer.unsend(KEY_ORDER, consumer.floor, consumer.cursor)
    if consumer.priority_of is not None:
        return PriorityDeliverer(context, consumer, notify_ready, consumer.priority_of)
    return Deliverer(context, consumer, notify_ready)
