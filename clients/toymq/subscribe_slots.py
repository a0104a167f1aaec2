"""The commands SUB and UNSUB while they await their answers. Sans-IO."""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from toymq.delivery_window import Feed
from toymq.pending_replies import Slot
from toymq_py.errors import ToymqError
from toymq_py.protocol import HelloReply, Reply, Unsubscribe, encode_command


class Subscriber(Protocol):
    """The part of a conversation that these slots need."""

    server: HelloReply | None

    def lease_of(self, feed: Feed) -> int | None: ...
    def route(self, feed: Feed) -> None: ...
    def unroute(self, feed: Feed) -> None: ...
    def end(self, feed: Feed, error: ToymqError) -> None: ...


class SubscribeSlot(Slot):
    """A SUB. It is not repeated after a lost connection: a reconnect subscribes every feed anyway."""

    __slots__ = ("_conversation", "feed")
    is_work = False

    def __init__(self, conversation: Subscriber, feed: Feed) -> None:
        super().__init__()
        self._conversation = conversation
        self.feed = feed

    @property
    def awaited(self) -> str:
        return self.feed.awaited

    def frame(self) -> bytes:
        return encode_command(replace(self.feed.command, lease=self._conversation.lease_of(self.feed)))

    def answered(self, reply: Reply) -> None:
        super().answered(reply)
        self._conversation.route(self.feed)

    def refused(self, error: ToymqError) -> None:
        self._conversation.end(self.feed, error)


class UnsubscribeSlot(Slot):
    """An UNSUB; deliveries that come before its answer are dropped. If the application has no open delivery, it tells the
    broker to count no attempt for them."""

    __slots__ = ("_conversation", "_feed", "_on_done", "_uncounted")

    def __init__(self, conversation: Subscriber, feed: Feed, on_done: Callable[[], None]) -> None:
        super().__init__()
        server = conversation.server
        self._uncounted = not feed.open and server is not None and server.takes_uncounted
        self._conversation = conversation
        self._feed = feed
        self._on_done = on_done

    @property
    def awaited(self) -> str:
        return f"the OK of UNSUB {self._feed.command.topic}"

    def frame(self) -> bytes:
        command = self._feed.command
        return encode_command(Unsubscribe(command.topic, command.consumer, self._uncounted))

    def answered(self, reply: Reply) -> None:
        super().answered(reply)
        self._end()

    def failed(self, error: ToymqError) -> None:
        self._end()

    def _end(self) -> None:
        self._conversation.unroute(self._feed)
        self._on_done()
