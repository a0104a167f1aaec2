"""Subscriptions over more than one topic, and polls. Contract: delivery.md, protocol.md."""

from toymq_py.subscription.pattern_poll import AnyPoll, PatternPoll
from toymq_py.subscription.pattern_subscription import PatternSubscription
from toymq_py.subscription.poll import Poll
from toymq_py.subscription.registry import SubscriptionRegistry

__all__ = ["AnyPoll", "PatternPoll", "PatternSubscription", "Poll", "SubscriptionRegistry"]
