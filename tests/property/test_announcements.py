"""Whatever the order of connect, greeting, loss, output and flush: a client announces that it has output.

The transport of a conversation takes output only after an announcement. Output without one would be sent late or never: such a
client neither receives nor raises."""

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from tests.support.conversing import GREETING, Conversing, ids_of, message
from toymq.delivery_window import Feed, FeedState
from toymq.pending_replies import CallSlot
from toymq_py.protocol import Hello, Nack, OkReply, Ping, PongReply

ANSWERS = {"HELLO": GREETING, "PING": b"PONG\n"}
ACTIONS = (
    *("connect", "flush", "answer") * 3, *("lose",) * 2, "publish", "subscribe", "unsubscribe", "ack", "ack synced", "ask",
    "give back", "deliver", "seek", "goodbye",
)  # fmt: skip


class Carrier:
    """Takes the output of a conversation when an announcement says that there is some, as a link does; also acts as the broker
    that gets the output."""

    def __init__(self) -> None:
        self.peer = Conversing(online=False)
        self.connected = False
        self._seen = 0
        self._unanswered: deque[bytes] = deque()
        self._feeds: list[Feed] = []
        self._next_id = 0

    @property
    def told(self) -> bool:
        """Whether there was an announcement since the output was last taken."""
        return self.peer.told > self._seen

    def do(self, action: str) -> None:
        conversation, live = self.peer.conversation, [feed for feed in self._feeds if feed.state is FeedState.LIVE]
        opened = [(feed, topic, msg_id) for feed in live for topic, msg_id in feed.open]
        match action:
            case "connect" if not self.connected:
                self.connected = True
                conversation.connected(Hello(1), self.peer.greetings.append)
            case "lose" if self.connected:
                self.connected = False
                self._unanswered.clear()
                self.peer.lose()
            case "flush" if self.told:
                self.flush()
            case "answer" if self._unanswered:
                self.peer.hear(self._unanswered.popleft())
            case "publish":
                self.peer.publish("x")
            case "subscribe":
                self._feeds.append(self.peer.subscribe(f"t{len(self._feeds)}"))
            case "unsubscribe" if live:
                conversation.unsubscribe(live[0], lambda: None)
            case "ack" if opened:
                conversation.ack(*opened[0])
            case "ack synced" if opened:
                conversation.ack_synced(*opened[0], lambda error: None)
            case "ask":
                conversation.send(CallSlot(Ping(), PongReply, repeatable=True))
            case "give back":
                conversation.send_now(CallSlot(Nack("t0", "c", ((0, 0),)), OkReply))
            case "deliver" if self.connected:
                for feed in live:
                    self._next_id += 1
                    self.peer.hear(message(self._next_id, topic=feed.command.topic))
                    ids_of(feed)
            case "seek" if self.connected and live:
                self.peer.hear(f"CLOSED {live[0].command.topic} c SEEK\n".encode())
            case "goodbye":
                conversation.send_last(CallSlot(Ping(), PongReply))
            case _:
                pass

    def flush(self) -> list[str]:
        """Take the output and return its lines; without a connection nothing is taken."""
        self._seen = self.peer.told
        if not self.connected:
            return []
        said = self.peer.said()
        for line in said:
            if line != "x":  # a body
                self._unanswered.append(ANSWERS.get(line.split()[0], b"OK 1\n"))
        return said

    def check(self) -> None:
        if self.connected and not self.told:
            assert self.flush() == [], "it is due, and nothing was announced"

    def settle(self) -> None:
        """Take output, and answer every command as a broker does, until nothing is announced or unanswered."""
        while self.told or self._unanswered:
            self.flush()
            while self._unanswered:
                self.do("answer")


@given(st.lists(st.sampled_from(ACTIONS), min_size=30, max_size=90))
def test_what_is_due_is_announced_whatever_the_order(actions: list[str]) -> None:
    carrier = Carrier()
    for action in actions:
        carrier.do(action)
        carrier.check()
    carrier.do("connect")
    carrier.settle()
    assert carrier.peer.conversation.online
    assert carrier.peer.conversation.idle, "all that was asked has been said and answered"
