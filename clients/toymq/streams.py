"""The publishes of one connection, as one stream for each topic. Sans-IO."""

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import count

from toymq.departures import Departures, Target
from toymq.pending_publishes import Outstanding, PublishSlot, Stream
from toymq.pending_replies import Slot

STREAMS_MAX = 1024
"""Topics whose publishing state is kept. An idle one makes room; it starts again under a new producer name."""


class Streams:
    """The streams of one connection. ``outstanding`` counts their unanswered bytes."""

    def __init__(self, producer: str | None, send: Callable[[Sequence[PublishSlot]], None]) -> None:
        """As ``Conversation``; ``send``: now, or once there is a connection."""
        self.outstanding = Outstanding()
        self.departures = Departures()
        self._producers = map(f"{producer}-{{}}".format, count()) if producer is not None else None  # an exception ends no map
        self._send = send
        self._by_topic: dict[str, Stream] = {}

    def __contains__(self, topic: str) -> bool:
        return topic in self._by_topic

    @property
    def held(self) -> list[PublishSlot]:
        """The publishes that wait for others."""
        return [*(slot for stream in self._by_topic.values() for slot in stream.held), *self.departures.slots()]

    def of(self, topic: str) -> Stream:
        """The stream of a topic. Raises: BadName."""
        stream = self._by_topic.get(topic)
        if stream is None:
            stream = Stream(topic, self._producers, self.outstanding, self._send)
            self._keep(stream)
        return stream

    def _keep(self, stream: Stream) -> None:
        if len(self._by_topic) >= STREAMS_MAX:
            idle = next((one for one in self._by_topic.values() if one.idle), None)
            if idle is not None:
                del self._by_topic[idle.topic]
        self._by_topic[stream.topic] = stream

    def leave(self, stream: Stream, target: Target, unanswered: Iterator[Slot]) -> bool:
        """Let a stream continue over another connection, which adopts it. Returns: False when that refuses it."""
        slots = [*unanswered, *stream.held]
        size = sum(len(slot.body) for slot in slots if isinstance(slot, PublishSlot) and slot.stream is stream)
        if not target.adopt(stream, size):
            return False
        self.forsake(stream)
        self.departures.begin(stream, target)
        return True

    def adopt(self, stream: Stream, size: int) -> bool:
        """See ``Target``."""
        present = self._by_topic.get(stream.topic)
        if present is not None and present.held:
            return False
        self._keep(stream)
        stream.outstanding.bytes -= size
        stream.outstanding = self.outstanding
        self.outstanding.bytes += size
        return True

    def accept(self, stream: Stream, slots: Sequence[PublishSlot]) -> None:
        """See ``Target``."""
        stream.send = self._send
        self._send(slots)

    def forsake(self, stream: Stream) -> None:
        """Give later publishes to a stream's topic another stream."""
        if self._by_topic.get(stream.topic) is stream:
            del self._by_topic[stream.topic]

    def forget(self) -> None:
        """Drop all streams."""
        self._by_topic, self.outstanding = {}, Outstanding()
        self.departures.forget()

    def go(self, unanswered: Collection[Slot]) -> None:
        """See ``Departures.go``."""
        if self.departures:
            self.departures.go(unanswered)
