"""The sans-IO conversation of a client, and a fake broker's side that says what a test wants."""

from collections.abc import Sequence

from toymq.conversation import Conversation
from toymq.delivery_window import Feed
from toymq.message import Receipt
from toymq.pending_publishes import Batch, Outcome
from toymq_py.errors import ConnectionLost, ToymqError
from toymq_py.protocol import Hello, HelloReply, Subscribe

GREETING = b"HELLO 1 server=fake/1 max_payload=2097152\n"
GREETING_UNCOUNTED = GREETING[:-1] + b" uncounted=1\n"
GREETING_LEASE = GREETING[:-1] + b" lease=1\n"


class Conversing:
    """A conversation whose output is read line by line; in these tests bodies are lines, too."""

    def __init__(self, greeting: bytes = GREETING, *, producer: str | None = "p", online: bool = True) -> None:
        self.greeting = greeting
        self.told = 0
        self.greetings: list[HelloReply | ToymqError] = []
        self.conversation = Conversation(producer, self._tell)
        if online:
            self.connect()

    def _tell(self) -> None:
        self.told += 1

    def connect(self) -> list[str]:
        """Connect and answer HELLO. Returns: the lines that the client sends then."""
        self.conversation.connected(Hello(1), self.greetings.append)
        assert self.said() == ["HELLO 1"]
        self.hear(self.greeting)
        return self.said()

    def lose(self) -> None:
        self.conversation.lost(ConnectionLost("the outcome is unknown"))

    def said(self) -> list[str]:
        return self.conversation.take_output().decode().split("\n")[:-1]

    def hear(self, data: bytes) -> None:
        self.conversation.receive(data)

    def publish(self, *bodies: str, topic: str = "t", key: str = "") -> Batch:
        batch = Batch(len(bodies), None, lambda: None)
        self.conversation.publish(topic, [(key.encode(), body.encode(), b"") for body in bodies], batch)
        return batch

    def subscribe(self, topic: str = "t", consumer: str = "c") -> Feed:
        feed = Feed(Subscribe(topic, consumer), lambda: None)
        self.conversation.subscribe(feed)
        return feed


def outcomes(batch: Batch) -> list[object]:
    """Return the outcomes of a batch: ids, or codes of errors; None where there is none yet."""
    return [_shown(outcome) for outcome in batch.outcomes]


def _shown(outcome: Outcome | None) -> object:
    if isinstance(outcome, Receipt):
        return f"DUP {outcome.msg_id}" if outcome.duplicate else outcome.msg_id
    return outcome.code if outcome is not None else None


def message(msg_id: int, *, topic: str = "t", attempt: int = 1, body: str = "x") -> bytes:
    return f"MSG {topic} {msg_id} {attempt} 1781767800000000000 - {len(body)}\n{body}\n".encode()


def ids_of(feed: Feed) -> Sequence[int]:
    """Take all deliveries that have arrived, and return their ids."""
    taken = []
    while (push := feed.take()) is not None:
        taken.append(push.msg_id)
    return taken
