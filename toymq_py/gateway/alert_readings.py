"""The measurements of alert rules, from the state of the broker. Keeps nothing and changes nothing."""

from collections.abc import Iterator

from toymq_py.config.alerts import Condition
from toymq_py.gateway.alert_states import Reading
from toymq_py.names import DEAD_LETTERS, TopicPattern, is_dead_letters, is_pattern
from toymq_py.topic import Topic, is_attached, oldest_due_ns

NOTHING = Reading(0)


class Subjects:
    """The topics that a rule measures, and the name of each in its notices."""

    def __init__(self, when: Condition, topic: str) -> None:
        self._letters = when == "letters"
        self._pattern = TopicPattern(topic) if is_pattern(topic) else None
        self.exact = None if self._pattern is not None else topic + DEAD_LETTERS if self._letters else topic
        """The one topic to measure; None for a pattern."""

    def of(self, name: str) -> str | None:
        """The name under which the rule reports a topic; None if the rule does not measure it. A dead-letter topic is reported
        under the name of its origin topic, which may be gone."""
        if self._letters:
            if not is_dead_letters(name):
                return None
            name = name.removesuffix(DEAD_LETTERS)
            return name if self._pattern is None or self._pattern.matches(name) else None
        return name if self._pattern is None or self._pattern.matches(name) else None


def measure(when: Condition, topic: Topic) -> Reading:
    """The worst value among a topic's consumers. For ``letters``, ``topic`` is a dead-letter topic and the value its count."""
    match when:
        case "letters":
            return Reading(topic.describe(consumers=False)["letters"])
        case "unattached" if not topic.channels:
            return Reading(topic.unconsumed()[0])
    worst = max(_of_consumers(when, topic), key=lambda reading: reading.value, default=NOTHING)
    return worst if worst.value else NOTHING


def _of_consumers(when: Condition, topic: Topic) -> Iterator[Reading]:
    """The value of each consumer. Nacked messages that wait for redelivery count for lag and age until they are acked: a
    consumer that fails at every message has no other backlog most of the time (ADR 0243)."""
    end = topic.next_id
    for name, channel in topic.channels.items():
        consumer = channel.consumer
        counts, given_back = consumer.counts(end), consumer.given_back
        if when == "retrying":
            yield Reading(consumer.retrying, name)
        elif when == "lag":
            yield Reading(counts.backlog + given_back, name, given_back)
        elif when == "age":
            since_ns = oldest_due_ns(channel, given_back=True) if counts.backlog + given_back else None
            yield Reading(0 if since_ns is None else max(channel.context.clock.wall_ns() - since_ns, 0) // 1_000_000, name)
        elif not is_attached(channel, counts):
            yield Reading(counts.backlog, name)
