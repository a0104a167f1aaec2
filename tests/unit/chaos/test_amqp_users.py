"""The harness's clients that speak AMQP: what they record of confirms, and which messages they know to be missing."""

import asyncio
import random

import pytest

from toymq_chaos.amqp_users import AmqpConsumer, AmqpLink, AmqpPublisher
from toymq_chaos.history import Event, Recorder
from toymq_chaos.users import Diary, Surroundings
from toymq_chaos.workload import Habits
from toymq_py.amqp import methods, properties
from toymq_py.amqp.frames import HEADER, frame
from toymq_py.errors import ConnectionLost


class FakeTransport(asyncio.Transport):
    """A transport that counts writes."""

    def __init__(self) -> None:
        super().__init__()
        self.published = 0
        self.written = b""

    def is_closing(self) -> bool:
        return False

    def write(self, data: object) -> None:
        assert isinstance(data, bytes)
        self.published += 1
        self.written += data


def user(events: list[Event]) -> tuple[Surroundings, Diary, random.Random]:
    recorder = Recorder(lambda: 0, events.append)
    where = Surroundings(recorder, "", str, "", Habits(), lambda: True, None, lambda topic, name: None)  # type: ignore[arg-type]
    return where, Diary(recorder, "c-pub"), random.Random(2)


async def test_confirms_are_recorded_without_an_id_and_what_is_not_confirmed_is_unknown() -> None:
    events: list[Event] = []
    confirmed: set[str] = set()
    publisher = AmqpPublisher(*user(events), confirmed, 1)
    link = AmqpLink()
    link.connection_made(transport := FakeTransport())
    for name, tag, multiple in (("basic.ack", 12, True), ("basic.nack", 13, False)):
        link.data_received(methods.encode(1, name, delivery_tag=tag, multiple=multiple))
    link.connection_lost(None)
    with pytest.raises(ConnectionLost):
        await publisher._publish(link, 10)
    count = transport.published
    assert count > 4
    assert [(event.result, event.id) for event in events] == [("ok", None)] * 2 + [("unknown", None)] * (count - 2)
    assert confirmed == {event.key for event in events[:2]}
    assert publisher.diary.moved


async def test_a_consumer_owes_what_was_confirmed_and_has_not_come() -> None:
    confirmed = {"c-pub-1", "c-pub-3"}
    consumer = AmqpConsumer(*user([]), confirmed)
    link = AmqpLink()
    link.connection_made(transport := FakeTransport())
    assert consumer.owes() == 2
    deliver = methods.encode(1, "basic.deliver", consumer_tag="c", delivery_tag=7, exchange="", routing_key="own")
    body = b"c-pub-1 rest"
    link.data_received(deliver + frame(HEADER, 1, b"\0\x3c\0\0" + len(body).to_bytes(8) + properties.NOTHING))
    link.data_received(frame(3, 1, body))
    consumer._handle(link, await link.next())
    assert consumer.owes() == 1
    assert transport.written == methods.encode(1, "basic.ack", delivery_tag=7)
