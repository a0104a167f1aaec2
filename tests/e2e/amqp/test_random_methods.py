"""Random well-formed methods: the broker answers, or closes a channel or the connection. It never logs a bug or hangs."""

import random
from pathlib import Path
from typing import Any

import pytest

from tests.support.amqp_wire import AmqpWire
from tests.support.broker_process import BrokerProcess
from toymq_py.amqp import methods, properties
from toymq_py.amqp.connection import Content
from toymq_py.amqp.frames import BODY, HEADER, HEARTBEAT_FRAME, frame

NAMES = ["", "q", "r", "e", "amq.topic", "amq.headers", "a@b", "x" * 255, "é", "a.b.c"]
ARGUMENTS: list[dict[str, Any]] = [
    {}, {"x-dead-letter-exchange": "e"}, {"x-match": "any", "a": 1}, {"alternate-exchange": "e"}, {"x-expires": 1},
    {"x-message-ttl": 1}, {"x-max-length": 1}, {"x": [{"y": b"z"}]}, {"x-delivery-limit": 0, "x-dead-letter-exchange": ""},
    {"x-max-priority": 9}, {"x-queue-type": "stream"}, {"x-stream-offset": "first"}, {"x-priority": 3},
    {"x-single-active-consumer": True, "x-priority": -1},
    {"x-max-length": 1, "x-dead-letter-exchange": "", "x-max-priority": 2},
]  # fmt: skip
LISTS: dict[str, list[Any]] = {
    "type": ["direct", "fanout", "topic", "headers", "x"], "consumer_tag": ["", "t", "u"], "table": ARGUMENTS,
    "shortstr": NAMES,
    "short": [0, 1, 65_535], "long": [0, 1, 2**32 - 1], "longlong": [0, 1, 2, 3, 2**64 - 1], "longstr": [b"", b"x"],
    "octet": [0], "bit": [False, False, True], "prefetch_size": [0], "immediate": [False],
}  # fmt: skip
CLIENTS = [
    form for (class_id, _), form in sorted(methods.FORMS.items())
    if class_id > 10 and not form.name.endswith("-ok") and form.name not in ("basic.deliver", "basic.return", "basic.get-empty")
]  # fmt: skip


def a_method(rng: random.Random) -> bytes:
    form = rng.choice(CLIENTS)
    values = {name: rng.choice(LISTS.get(name, LISTS[kind])) for kind, name in form.fields}
    data = methods.encode(rng.choice((1, 1, 1, 2)), form.name, **values)
    if form.name != "basic.publish":
        return data
    found = {"headers": rng.choice(ARGUMENTS), "expiration": rng.choice([None, "0", "1", "x"]), "priority": 9}
    body = b"x" * rng.choice((0, 1, 70))
    head = b"\0\x3c\0\0" + len(body).to_bytes(8) + properties.encode(found)
    channel = data[1:3]
    pieces = [frame(HEADER, int.from_bytes(channel), head)]
    return b"".join([data, *pieces, *([frame(BODY, int.from_bytes(channel), body)] if body else [])])


def a_session(wire: AmqpWire, rng: random.Random, count: int) -> None:
    """Send methods until the connection is closed, or all are sent; then close it."""
    for _ in range(count):
        wire.socket.sendall(a_method(rng) if rng.random() < 0.95 else HEARTBEAT_FRAME)
        if rng.random() < 0.05:  # open again what was closed
            wire.socket.sendall(methods.encode(1, "channel.close-ok") + methods.encode(1, "channel.open"))
    wire.send(0, "connection.close")
    while True:
        found = wire.event()
        if not isinstance(found, Content) and found.name == "connection.close":
            wire.send(0, "connection.close-ok")
            return
        if not isinstance(found, Content) and found.name == "connection.close-ok":
            return


def sessions(broker: BrokerProcess, seed: int, count: int) -> None:
    rng = random.Random(seed)
    for _ in range(count):
        with AmqpWire(broker.amqp) as wire:
            try:
                a_session(wire.login(), rng, rng.randrange(1, 40))
            except ConnectionError:
                continue  # closed while we were still sending
    broker.stop()
    _, errors = broker.ended()
    assert "Traceback" not in errors, f"seed {seed}: {errors[-3000:]}"
    assert " bug" not in errors, f"seed {seed}: {errors[-3000:]}"


def test_no_sequence_of_methods_is_a_bug(broker: BrokerProcess) -> None:
    sessions(broker, 1, 60)


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(2, 12))
def test_no_long_sequence_of_methods_is_a_bug(tmp_path: Path, seed: int) -> None:
    with BrokerProcess(tmp_path / "d", "--amqp", "127.0.0.1:0") as broker:
        sessions(broker, seed, 1000)
