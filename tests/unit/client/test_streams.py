"""The publishes of one connection by topic. ``test_pending_publishes.py`` and ``test_departures.py`` drive them."""

from collections.abc import Sequence

import pytest

from toymq.pending_publishes import Batch, PublishSlot
from toymq.streams import Streams


def streams(producer: str = "p") -> Streams:
    def send(slots: Sequence[PublishSlot]) -> None:
        """Keep the publishes waiting."""

    return Streams(producer, send)


def publish(streams: Streams, topic: str, body: bytes = b"x") -> PublishSlot:
    stream = streams.of(topic)
    slot = PublishSlot(stream, (b"", body, b""), Batch(1, None, lambda: None), 0)
    stream.add([slot])
    return slot


def test_a_topic_has_one_stream_and_an_idle_one_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toymq.streams.STREAMS_MAX", 2)
    mine = streams()
    publish(mine, "busy")
    assert mine.of("a") is mine.of("a")
    mine.of("b")
    assert "a" not in mine, "it was idle"
    assert "busy" in mine


def test_bytes_go_with_the_stream() -> None:
    here, there = streams(), streams("q")
    slot = publish(here, "t", b"12345")
    stream = here.of("t")
    assert there.adopt(stream, 5)
    here.forsake(stream)
    assert (here.outstanding.bytes, there.outstanding.bytes) == (0, 5)
    assert "t" not in here
    assert there.of("t") is stream
    slot.failed(ValueError())  # type: ignore[arg-type]
    assert there.outstanding.bytes == 0


def test_all_are_forgotten() -> None:
    mine = streams()
    publish(mine, "t")
    mine.forget()
    assert "t" not in mine
    assert mine.outstanding.bytes == 0
    assert mine.held == []
