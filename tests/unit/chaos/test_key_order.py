"""The checker on the order of messages with the same key. Contract: delivery.md, "mode"."""

import pytest

from toymq_chaos.checker import check
from toymq_chaos.history import Event

START = [
    Event(0, "supervisor", "start"),
    Event(0, "supervisor", "declare", topic="t", consumer="c", note="keyed"),
    Event(1, "c.1", "sub", topic="t", consumer="c", sent_ns=0),
    Event(1, "d.1", "sub", topic="t", consumer="c", sent_ns=0),
]


def pub(t_ns: int, msg_id: int, group: str | None) -> Event:
    return Event(t_ns, "p.1", "pub", topic="t", key=f"k{msg_id}", digest="x", id=msg_id, sent_ns=t_ns - 1, group=group)


def deliver(t_ns: int, msg_id: int, group: str | None, process: str = "c.1") -> Event:
    return Event(
        t_ns, process, "deliver", topic="t", consumer="c", key=f"k{msg_id}", digest="x", id=msg_id, attempt=1, group=group
    )


def ack(t_ns: int, msg_id: int, sent_ns: int, process: str = "c.1") -> Event:
    return Event(t_ns, process, "ack", topic="t", consumer="c", id=msg_id, sent_ns=sent_ns)


DRAINED = Event(99, "supervisor", "drained")


def broken(*events: Event) -> list[str]:
    published = [pub(2, 0, "red"), pub(3, 1, "red"), pub(4, 2, "blue")]
    return [violation.promise for violation in check([*START, *published, *events]).violations]


def test_a_message_comes_after_the_ack_of_the_one_before_it_of_its_group() -> None:
    assert not broken(deliver(5, 0, "red"), deliver(6, 2, "blue"), ack(9, 0, 7), deliver(10, 1, "red", "d.1"))


def test_an_answer_that_is_read_after_the_next_delivery_proves_nothing() -> None:
    assert not broken(deliver(5, 0, "red"), deliver(8, 1, "red", "d.1"), ack(9, 0, 7))


@pytest.mark.parametrize("events", [
    [deliver(5, 0, "red"), deliver(6, 1, "red", "d.1"), ack(9, 0, 7)],
    [deliver(5, 0, "red"), deliver(6, 1, "red", "d.1"), DRAINED],
    [deliver(6, 1, "red"), DRAINED],
], ids=["its ack was sent later", "it was not acked", "it was not delivered"])  # fmt: skip
def test_a_message_that_overtakes_its_group_is_found(events: list[Event]) -> None:
    assert any("the one before it of its group" in promise for promise in broken(*events))


def test_an_ack_that_a_cut_history_lacks_may_have_been_sent() -> None:
    assert not broken(deliver(5, 0, "red"), deliver(6, 1, "red", "d.1"))


def test_messages_without_a_group_have_no_order() -> None:
    events = [pub(2, 0, None), pub(3, 1, None), deliver(5, 1, None), deliver(6, 0, None)]
    assert not check([*START, *events]).violations
