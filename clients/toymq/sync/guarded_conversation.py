"""A conversation that survives an exception at any point, such as one from a signal handler: Ctrl-C, a time limit.

Such an exception leaves lists that no longer agree: a frame without its slot, a reply that nothing waits for. Every method sets
a mark while it changes the conversation. A method that finds an old mark repairs the conversation first (ADR 0089), as after a
crash:

1. The connection is dropped. So no reply can be taken for that of another command.
2. Subscriptions and acks are kept, and go on with the next connection. An ack may be sent twice, which is harmless.
3. Publishes without an answer are forgotten: their outcome is unknown, and a repeat needs numbers that can be trusted. Later
   publishes have a new producer name, so that none is taken for a duplicate of an old one.

Nothing is repaired while the exception propagates, since the next exception could interrupt the repair.
"""

from collections import deque
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from toymq.conversation import Conversation, State
from toymq.delivery_window import AckList, AckSlot, FeedState
from toymq.pending_replies import CallSlot
from toymq_py.errors import ProtocolViolation
from toymq_py.protocol import ClientConnection

P = ParamSpec("P")
T = TypeVar("T")


def _marked(method: Callable[Concatenate[Conversation, P], T]) -> Callable[Concatenate["GuardedConversation", P], T]:
    """Decorate a method of a conversation: the mark stays set if the method raises."""

    @wraps(method)
    def marked(self: "GuardedConversation", /, *args: P.args, **kwargs: P.kwargs) -> T:
        if self.torn:
            self.mend()
        mended = self.mended
        self.torn = True
        try:
            result = method(self, *args, **kwargs)
        except ProtocolViolation:  # after it the conversation is told that its connection is lost
            self.torn = False
            raise
        if self.mended != mended:  # a signal handler used the client in the middle of this, and took it for left behind
            self.mend()
        self.torn = False
        return result

    return marked


class GuardedConversation(Conversation):
    """A ``Conversation`` for code that a signal handler's exception may interrupt. From ``connected`` on, the methods are those
    of ``Conversation``, with the mark."""

    def __init__(self, producer: str | None, drop_connection: Callable[[], None]) -> None:
        super().__init__(producer, lambda: None)
        self._drop_connection = drop_connection
        self.torn = False
        """Whether a method is under way, or was left by an exception that is not its own."""
        self.mended = 0
        """How often the conversation was mended: a publish that was sent before the last time gets no answer."""

    connected = _marked(Conversation.connected)
    lost = _marked(Conversation.lost)
    close = _marked(Conversation.close)
    receive = _marked(Conversation.receive)
    take_output = _marked(Conversation.take_output)
    send = _marked(Conversation.send)
    send_last = _marked(Conversation.send_last)
    send_now = _marked(Conversation.send_now)
    publish = _marked(Conversation.publish)
    subscribe = _marked(Conversation.subscribe)
    unsubscribe = _marked(Conversation.unsubscribe)
    ack = _marked(Conversation.ack)
    ack_synced = _marked(Conversation.ack_synced)
    settle = _marked(Conversation.settle)
    adopt = _marked(Conversation.adopt)
    accept = _marked(Conversation.accept)
    forsake = _marked(Conversation.forsake)
    adopt_feed = _marked(Conversation.adopt_feed)
    adopt_acks = _marked(Conversation.adopt_acks)
    hand_back = _marked(Conversation.hand_back)
    drop_done = _marked(Conversation.drop_done)

    def mend(self) -> None:
        """Repair the conversation's lists after an exception interrupted a method. If this is interrupted itself, the next call
        repeats it."""
        self.torn = True
        self._drop_connection()
        closed = self.is_closed
        if not closed:
            self._state = State.OFFLINE
        self._debug, self._wire, self._out = None, ClientConnection(), []
        self._routes, self._patterns = {}, []
        acks: list[AckList] = [*self._acks, *(slot.acks for slot in self._unanswered if isinstance(slot, AckSlot))]
        for feed in self.feeds:
            feed.mend()
            acks += feed.ack_lists
        for one in acks:
            one.repeat()
        self._acks = [one for one in dict.fromkeys(acks) if one.ids]
        for one in self._acks:
            one.listed = True
        self._unanswered = deque()
        self._waiting = deque([slot for slot in self._waiting if isinstance(slot, CallSlot) and not slot.done])
        self._streams.forget()
        for feed in self.feeds.copy():
            if closed:
                feed.end(self._end)
            if feed.state not in (FeedState.ASKED, FeedState.LIVE):
                self.feeds.remove(feed)
        self.mended += 1
        self.torn = False
