"""A conversation that is used again after an exception, raised by a signal handler for example, stopped it in the middle of a
step."""

from collections.abc import Callable
from itertools import count

import pytest

from tests.support.conversing import GREETING, outcomes
from tests.support.interruptions import Interrupter
from toymq.delivery_window import Feed, FeedState
from toymq.errors import ClientClosed
from toymq.pending_publishes import Batch
from toymq.sync.guarded_conversation import GuardedConversation
from toymq_py.errors import ConnectionLost, ProtocolViolation
from toymq_py.protocol import Hello, Subscribe


class Guarded:
    """An online conversation whose subscription was delivered two messages, and handed them out."""

    def __init__(self) -> None:
        self.dropped = 0
        self.conversation = GuardedConversation("p", self._drop)
        self.feed = Feed(Subscribe("t", "c"), lambda: None)
        self.conversation.subscribe(self.feed)
        self.connect()
        self.conversation.receive(b"OK 0\nMSG t 0 1 1 - 1\nx\nMSG t 1 1 1 - 1\nx\n")
        assert self.feed.take() is not None
        assert self.feed.take() is not None

    def _drop(self) -> None:
        self.dropped += 1

    def connect(self) -> list[str]:
        self.conversation.connected(Hello(1), lambda _: None)
        assert self.said() == ["HELLO 1"]
        self.conversation.receive(GREETING)
        return self.said()

    def said(self) -> list[str]:
        return self.conversation.take_output().decode().split("\n")[:-1]

    def publish(self) -> Batch:
        batch = Batch(1, None, lambda: None)
        self.conversation.publish("t", [(b"", b"body", b"")], batch)
        return batch

    def ack(self) -> None:
        self.conversation.ack(self.feed, "t", 0)

    def acked(self) -> None:
        self.conversation.receive(b"OK 1\n")

    def lost(self) -> None:
        self.conversation.lost(ConnectionLost("lost"))

    def reconnect(self) -> None:
        self.lost()
        self.connect()


def _sequences() -> dict[str, list[Callable[[Guarded], object]]]:
    return {
        "publish": [Guarded.publish, Guarded.said],
        "ack": [Guarded.ack, Guarded.said, Guarded.acked],
        "loss": [Guarded.ack, Guarded.publish, Guarded.said, Guarded.reconnect],
    }


@pytest.mark.parametrize("name", _sequences())
def test_an_interrupted_conversation_starts_anew_on_the_next_connection(name: str) -> None:
    """Wherever an exception interrupts it: the old connection is dropped, an ack given before is sent or answered, the
    subscription goes on, and the next publish has an unused number."""
    torn = 0
    for at in count():
        guarded = Guarded()
        done: list[object] = []
        with Interrupter(at) as interrupter:
            for step in _sequences()[name]:
                step(guarded)
                done.append(step)
        if not interrupter.raised_in:
            break
        if not guarded.conversation.torn:
            continue
        torn += 1
        batch = guarded.publish()
        assert guarded.dropped == 1, interrupter.raised_in
        *acks, subscribe, publish, body = guarded.connect()
        assert subscribe.startswith("SUB t c"), interrupter.raised_in
        assert body == "body"
        assert publish.endswith(" 4 seq=0"), interrupter.raised_in
        if Guarded.publish in done:
            assert publish == "PUB t p-1 4 seq=0", f"the number of the earlier one: {interrupter.raised_in}"
        if Guarded.ack in done and Guarded.acked not in _sequences()[name]:
            assert acks == ["ACK t c 0"], interrupter.raised_in
        guarded.conversation.receive(b"OK 7\n" * (len(acks) + 2))
        assert outcomes(batch) == [7], interrupter.raised_in
        assert not guarded.conversation.torn
    assert torn > 20, f"only {torn} of {at} places: the conversation was not traced"


def test_a_closed_conversation_stays_closed() -> None:
    for at in count():
        guarded = Guarded()
        with Interrupter(at) as interrupter:
            guarded.conversation.close(ClientClosed("closed"))
        if not interrupter.raised_in:
            break
        guarded.conversation.close(ClientClosed("closed"))
        assert guarded.conversation.is_closed, interrupter.raised_in
        assert guarded.feed.state is FeedState.ENDED, interrupter.raised_in
        assert isinstance(guarded.feed.error, ClientClosed)
        assert outcomes(guarded.publish()) == ["CLIENT_CLOSED"], interrupter.raised_in
    assert at > 5


def test_a_wrong_answer_is_no_interruption() -> None:
    guarded = Guarded()
    batch = guarded.publish()
    guarded.said()
    with pytest.raises(ProtocolViolation):
        guarded.conversation.receive(b"PONG\n")
    assert not guarded.conversation.torn
    guarded.reconnect()
    guarded.conversation.receive(b"OK 0\nOK 3\n")
    assert (outcomes(batch), guarded.dropped) == ([3], 0)


def test_a_signal_handler_may_use_the_conversation_in_the_middle_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interrupted call cannot go on: both calls start on a new connection, and no frame is sent before its HELLO."""
    guarded = Guarded()
    frames: list[object] = []
    original = Feed.settle

    def settle(feed: Feed, topic: str, msg_id: int) -> None:
        if not frames:
            frames.append(guarded.publish())
        original(feed, topic, msg_id)

    monkeypatch.setattr(Feed, "settle", settle)
    guarded.ack()
    assert guarded.dropped == 2
    assert guarded.connect()[0] == "ACK t c 0"
