"""SUB: subscribe a session to a topic or a pattern. Contract: protocol.md, "SUB"; delivery.md."""

from collections.abc import Callable

from toymq_py.broker import Broker
from toymq_py.errors import RequestError, ShuttingDown, TooManySubscriptions
from toymq_py.names import TopicPattern
from toymq_py.protocol import Subscribe, encode_ok
from toymq_py.session.deliveries import AnySubscription, Deliveries
from toymq_py.session.replies import Replies
from toymq_py.subscription import PatternSubscription

DEFAULT_WINDOW = 1024


def subscribe(
    command: Subscribe, broker: Broker, replies: Replies, deliveries: Deliveries, on_topic_created: Callable[[str], None]
) -> None:
    """Subscribe, and reply when the consumer is on stable storage. ``on_topic_created`` gets the name of a new topic.

    Raises: AlreadySubscribed, TooManySubscriptions, ShuttingDown, and what ``Topic.subscribe`` raises.
    """
    if broker.shutting_down:
        raise ShuttingDown("the broker is shutting down")
    name = command.topic
    pattern = broker.partitioned.pattern_of(name)
    deliveries.check_free(name, pattern)
    limit = broker.options.max_subscriptions
    if len(deliveries.by_name) >= limit:
        raise TooManySubscriptions(f"the session has {limit} subscriptions, the limit (--max-subscriptions)")
    if pattern is not None:
        _subscribe_pattern(command, pattern, broker, replies, deliveries)
        return
    known = name in broker.topics
    topic = broker.topic_or_new(name)
    if not known:
        on_topic_created(name)
    subscription, registration = topic.subscribe(
        command.consumer,
        command.start,
        mode=command.mode or "exclusive",
        window=command.window or DEFAULT_WINDOW,
        visibility_s=seconds(command.visibility_ms),
        wake=deliveries.wake,
        ended=deliveries.ended,
    )
    subscription.number = command.lease or 0
    topic.when_registered(subscription, registration, _answer(subscription, replies, deliveries, lambda: 1))


def _subscribe_pattern(
    command: Subscribe, pattern: TopicPattern, broker: Broker, replies: Replies, deliveries: Deliveries
) -> None:
    subscription = PatternSubscription(
        pattern,
        command.consumer,
        mode=command.mode or "exclusive",
        window=command.window or DEFAULT_WINDOW,
        visibility_s=seconds(command.visibility_ms),
        start=command.start,
        wake=deliveries.wake,
        ended=deliveries.pattern_ended,
    )
    subscription.number = command.lease or 0
    answer = _answer(subscription, replies, deliveries, lambda: subscription.matched)
    broker.follow(subscription)
    subscription.when_registered(answer)


def _answer(
    subscription: AnySubscription, replies: Replies, deliveries: Deliveries, topics: Callable[[], int]
) -> Callable[[OSError | RequestError | None], None]:
    """Queue a place for the reply to SUB. Returns: the function to call when the consumer is on stable storage, or with the
    error if it could not be stored.

    Args:
        topics: how many topics are subscribed to, at the time of the reply.
    """
    deliveries.add(subscription)
    held = replies.hold()

    def registered(error: OSError | RequestError | None) -> None:
        if error is not None:
            deliveries.drop(subscription)
            replies.fail(held, error)
        else:
            held.released = lambda begin: deliveries.released(subscription)
            replies.fill(held, lambda: encode_ok(topics()))

    return registered


def seconds(milliseconds: int | None) -> float | None:
    """Convert milliseconds to seconds; None stays None."""
    return None if milliseconds is None else milliseconds / 1000
