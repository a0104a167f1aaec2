"""The publishes of one connection, grouped into one ``Stream`` for each topic. Sans-IO."""

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
        """``producer``: as of ``Conversation``; ``send``: sends publishes now, or once there is a connection."""
        self.outstanding = Outstanding()
        self.departures = Departures()
        self._producers = map(f"{producer}-{{}}".format, count()) if producer is not None else None  # an exception ends no map
        self._send = send
        self._by_topic: dict[str, Stream] = {}

    def __contains__(self, topic: str) -> bool:
        return topic in self._by_topic

    @property
    def held(self) -> list[PublishSlot]:
        """The publishes that are held back until others are answered."""
        return [*(slot for stream in self._by_topic.values() for slot in stream.held), *self.departures.slots()]

    def of(self, topic: str) -> Stream:
        """Return the stream of a topic, made if need be. Raises: BadName."""
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
        """Move a stream to the conversation ``target``. Returns: False when that refuses to adopt it."""
        slots = [*unanswered, *stream.held]
        size = sum(len(slot.body) for slot in slots if isinstance(slot, PublishSlot) and slot.stream is stream)
        if not target.adopt(stream, size):
            return False
        self.forsake(stream)
        self.departures.begin(stream, target)
        return True

    def adopt(self, stream: Stream, size: int) -> bool:
        """Take over a topic's stream of publishes from another connection; see ``Target.adopt``."""
        present = self._by_topic.get(stream.topic)
        if present is not None and present.held:
            return False
        self._keep(stream)
        stream.outstanding.bytes -= size
        stream.outstanding = self.outstanding
        self.outstanding.bytes += size
        return True

    def accept(self, stream: Stream, slots: Sequence[PublishSlot]) -> None:
        """Send the publishes of an adopted stream; see ``Target.accept``."""
        stream.send = self._send
        self._send(slots)

    def forsake(self, stream: Stream) -> None:
        """Forget a stream: later publishes to its topic begin a new one."""
        if self._by_topic.get(stream.topic) is stream:
            del self._by_topic[stream.topic]

    def forget(self) -> None:
        """Drop all streams."""
        self._by_topic, self.outstanding = {}, Outstanding()
        self.departures.forget()

    def go(self, unanswered: Collection[Slot]) -> None:
        """Hand over the moving streams that have no unanswered publish left; see ``Departures.go``."""
        if self.departures:
            self.departures.go(unanswered)
