"""Publishes of a channel, and actions that wait for their answers."""

from types import SimpleNamespace
from typing import Any, cast

from toymq_py.amqp.publishing import Held, Publishes
from toymq_py.amqp.queues import Queues
from toymq_py.topic import Commit


class FakeCommit:
    error = None

    def __init__(self) -> None:
        self.waiters: list[Any] = []

    def add_waiter(self, call: Any) -> None:
        self.waiters.append(call)

    def synced(self) -> None:
        for call in self.waiters:
            call()


def publishes(commit: FakeCommit) -> Publishes:
    """Make publishes to topics that store messages with this commit."""

    def publish(keys: list[bytes], *_: object) -> list[Any]:
        return [SimpleNamespace(count=len(keys), error=None, commit=cast(Commit, commit))]

    broker = SimpleNamespace(has=lambda name: True, topic_to_publish=lambda name: SimpleNamespace(publish=publish))
    queues = SimpleNamespace(broker=broker, expiries=SimpleNamespace(of_topic=lambda name: None))
    return Publishes(
        cast(Queues, queues), Held(), confirmed=lambda count, stored: None, refused=lambda error, topic, as_declared: None,
        progress=lambda: None, waits_for_space=lambda: False,
    )  # fmt: skip


def test_what_waits_for_the_answers_is_called_behind_the_last_one() -> None:
    commit, called = FakeCommit(), list[object]()
    those = publishes(commit)
    those.add(("q",), b"x", b"")
    those.flush()
    assert those.waiting
    those.when_answered(called.append)
    assert called == []
    commit.synced()
    assert called == [None]


def test_what_begins_to_wait_behind_the_last_answer_is_called_at_once() -> None:
    """Found: queue.declare behind 2,000 publishes hung: its task waited for their answers, and the last one had come before the
    wait began."""
    commit, called = FakeCommit(), list[object]()
    those = publishes(commit)
    those.add(("q",), b"x", b"")
    those.flush()
    commit.synced()
    those.when_answered(called.append)
    assert called == [None]
