"""The calls of the product's own clients are recorded like those of raw connections, and checked against the same promises."""

import random
import socket
from types import SimpleNamespace

import pytest

from toymq import ConnectionLost, Receipt, RequestTimeout
from toymq.message import Delivery
from toymq.options import Connected, Disconnected
from toymq_chaos.checker import check
from toymq_chaos.history import Event, Recorder
from toymq_chaos.users import TOPIC, AsyncPublisher, Diary, Item, Surroundings, choose, items
from toymq_chaos.workload import Habits
from toymq_py.errors import DiskLow, StorageFailed, ToymqError
from toymq_py.protocol import MessagePush

UP, DOWN = Connected("b"), Disconnected("b", "gone")
KEYED, NUMBERED = Item("u-0", b"x", None), Item("u-1", b"u-1 x", 1)


class Written:
    """A diary of a client, and the events that it wrote."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._now_ns = 0
        recorder = Recorder(self._tick, self.events.append)
        self.diary = Diary(recorder, "u")

    def _tick(self) -> int:
        self._now_ns += 1_000_000
        return self._now_ns

    @property
    def told(self) -> list[tuple[str, str, str]]:
        return [(event.process, event.op, event.result) for event in self.events]


def delivery(msg_id: int, *, attempt: int = 1, key: bytes = b"k", payload: bytes = b"x") -> Delivery:
    return Delivery(MessagePush(TOPIC, msg_id, attempt, 0, key, b"", payload))


def test_each_connection_has_a_name_and_its_own_subscription() -> None:
    """The client subscribes by itself on its second connection: the diary knows it from the first delivery."""
    written = Written()
    diary = written.diary
    for event in (UP, DOWN, UP):
        diary.on_event(event)
        if event is UP:
            diary.delivered(delivery(diary.losses))
    diary.close()
    first = [("u.1", "connect", "ok"), ("u.1", "sub", "ok"), ("u.1", "deliver", "ok"), ("u.1", "disconnect", "ok")]
    assert written.told == [*first, *((process.replace("1", "2"), op, result) for process, op, result in first)]
    assert written.events[1].note == "buffered"
    lost = written.events[3].t_ns
    assert (written.events[5].sent_ns or 0) > lost, "the second SUB was not sent before the first connection was lost"


def test_a_message_without_a_key_is_called_as_its_payload_begins() -> None:
    written = Written()
    written.diary.delivered(delivery(0, key=b"", payload=b"u-1 anything else"))
    assert written.events[-1].key == "u-1"


def test_the_clients_own_repeat_explains_a_duplicate_and_nothing_else_does() -> None:
    for events, promises in (((UP, DOWN, UP), []), ((UP,), ["a key that was never published was answered DUP"])):
        written = Written()
        written.diary.on_event(UP)
        sent_ns, losses = written.diary.now_ns, written.diary.losses
        for event in events[1:]:
            written.diary.on_event(event)
        assert not written.diary.published(KEYED, sent_ns, losses, Receipt(0, duplicate=True))
        assert [violation.promise for violation in check(written.events).violations] == promises


@pytest.mark.parametrize(
    ("outcome", "result", "keyed_again", "numbered_again", "moves"),
    [
        (Receipt(3, duplicate=False), "ok", False, False, True),
        (DiskLow("full"), "err", True, True, True),
        (StorageFailed("failed"), "unknown", True, False, True),
        (RequestTimeout("late"), "unknown", True, False, False),
        (ConnectionLost("gone"), "unknown", True, False, False),
    ],
)
def test_what_is_published_again(
    outcome: Receipt | ToymqError, result: str, keyed_again: bool, numbered_again: bool, moves: bool
) -> None:
    """A publish with an unknown outcome is not repeated without a key of the application: it would be another message."""
    for item, again in ((KEYED, keyed_again), (NUMBERED, numbered_again)):
        written = Written()
        assert written.diary.published(item, 1, 0, outcome) is again
        assert written.events[-1].result == result
        assert written.events[-1].seq == item.number
        assert written.diary.moved is moves


def test_a_synced_ack_binds_on_any_connection_a_nack_on_that_of_its_delivery() -> None:
    written = Written()
    diary = written.diary
    losses = diary.delivered(delivery(0))
    for choice in ("sync", "ack", "nack", "forget"):
        diary.settled(delivery(0), choice, 1, losses)  # type: ignore[arg-type]
    diary.on_event(DOWN)
    for choice, known in (("sync", losses), ("nack", losses), ("sync", -1)):
        diary.settled(delivery(0), choice, 1, known)  # type: ignore[arg-type]
    answers = [(event.op, event.result, event.sync) for event in written.events if event.op in ("ack", "nack")]
    assert answers == [
        ("ack", "ok", True), ("ack", "unknown", None), ("nack", "ok", None),
        ("ack", "ok", True), ("nack", "unknown", None), ("ack", "unknown", True),
    ]  # fmt: skip


def test_the_nemesis_cuts_the_connections_of_the_products_clients() -> None:
    ours, theirs = socket.socketpair()
    where = Surroundings(Recorder(lambda: 0, [].append), "toymq://b", str, "", Habits(), lambda: True, None, None)  # type: ignore[arg-type]
    user = AsyncPublisher(where, Written().diary, random.Random(1), iter(()))
    user.cut()
    links = [SimpleNamespace(descriptor=ours.fileno()), SimpleNamespace(descriptor=None)]
    user.client = SimpleNamespace(_links=links)  # type: ignore[assignment]
    with ours, theirs:
        user.cut()
        assert (ours.recv(1), theirs.recv(1)) == (b"", b""), "both ends see that it is over"


def test_with_workers_only_the_loss_of_its_own_connection_begins_a_subscription_anew() -> None:
    written = Written()
    diary, where = written.diary, Surroundings(*[None] * 8, workers=True)  # type: ignore[arg-type]
    user = AsyncPublisher(where, diary, random.Random(1), iter(()))
    outages = SimpleNamespace(down=lambda link, address, reason: None)
    user.client = SimpleNamespace(_outages=outages)  # type: ignore[assignment]
    user.tell_each_loss()
    for feeds in ([], ["its feed"]):
        began_ns = written._now_ns
        diary.on_event(UP)
        diary.delivered(delivery(diary.losses))
        outages.down(SimpleNamespace(conversation=SimpleNamespace(feeds=feeds)), "b", ConnectionLost("gone"))
        diary.delivered(delivery(diary.losses))
        sent_ns = [event.sent_ns or 0 for event in written.events if event.op == "sub"][-1]
        assert (sent_ns > began_ns) == bool(feeds)


def test_with_workers_a_loss_within_an_outage_explains_a_duplicate_too() -> None:
    """Found: within an outage the client reports only the first lost connection, so a later loss that caused DUP looked like a
    new key answered DUP."""
    written = Written()
    diary, where = written.diary, Surroundings(*[None] * 8, workers=True)  # type: ignore[arg-type]
    user = AsyncPublisher(where, diary, random.Random(1), iter(()))
    outages = SimpleNamespace(down=lambda link, address, reason: None)
    user.client = SimpleNamespace(_outages=outages)  # type: ignore[assignment]
    user.tell_each_loss()
    diary.on_event(UP)
    diary.on_event(DOWN)
    sent_ns, losses = diary.now_ns, diary.losses
    outages.down(SimpleNamespace(conversation=SimpleNamespace(feeds=[])), "b", ConnectionLost("gone"))
    diary.published(KEYED, sent_ns, losses, Receipt(7, duplicate=True))
    assert check(written.events).violations == []


def test_a_stalled_one_says_which() -> None:
    written = Written()
    written.diary.on_event(UP)
    written.diary.on_event(DOWN)
    written.diary.stalled()
    event = written.events[-1]
    assert (event.op, event.topic, event.note) == ("stalled", TOPIC, "u after 1 losses")


def test_items_and_choices_come_from_their_seed() -> None:
    def some(numbered: bool) -> list[Item]:
        source = items("u", random.Random(1), numbered=numbered)
        return [next(source) for _ in range(6)]

    assert some(True) == some(True)
    assert [item.number for item in some(True)] == [None, 1, None, 3, None, 5]
    assert {item.number for item in some(False)} == {None}
    assert all(item.payload.startswith(item.name.encode() + b" ") for item in some(True) if item.number is not None)
    rng, habits = random.Random(1), Habits(forget=0.2, nack=0.2, sync=0.2)
    assert {choose(rng, habits, calm=False) for _ in range(100)} == {"forget", "nack", "sync", "ack"}
    assert {choose(rng, habits, calm=True) for _ in range(100)} == {"ack"}
