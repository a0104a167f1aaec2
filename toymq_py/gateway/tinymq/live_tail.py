"""A live tail of a topic, or of all topics that match a glob: messages published from now on. Consumes nothing."""

import json
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import TracebackType

from toymq_py.disk_errors import BeingExamined
from toymq_py.errors import NoSuchTopic
from toymq_py.gateway.message_operations import PAGE_MAX, READ_BYTES
from toymq_py.gateway.request_context import Gateway
from toymq_py.gateway.tinymq.message_views import Filter, Place, describe
from toymq_py.names import TopicPattern, is_pattern
from toymq_py.topic import Topic


class LiveTail:
    """One tail, from ``open`` to ``close``. Messages of a topic come in order; those no longer retained are skipped."""

    def __init__(self, gateway: Gateway, place: Place, wanted: Filter | None) -> None:
        """Raises: StorageFailed for a topic whose files could not be opened."""
        self.place = place
        self._gateway = gateway
        self._wanted = wanted
        self._pattern = TopicPattern(place.name) if is_pattern(place.name) else None
        if self._pattern is None:
            with suppress(NoSuchTopic):  # it may be created later, and not by a tail
                gateway.broker.topic(place.name)
        self._awaited = self._pattern is None
        """Whether the topic does not exist yet."""
        self._at: dict[Topic, int] = {}
        self._withdraw: dict[Topic, Callable[[], object]] = {}
        self._hungry: dict[Topic, None] = {}  # they have messages to read
        self._wake: Callable[[], None] | None = None
        self._unhook: Callable[[], object] = lambda: None
        self.ended = False
        """Whether the client is gone, or may be."""

    def __enter__(self) -> "LiveTail":
        self.open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def open(self) -> None:
        """Follow the topics that match now, each from the end of its log, and those that are created later from their first
        message. Sends nothing of what was published before."""
        broker = self._gateway.broker
        if self._pattern is None:
            found = [broker.topics[self.place.name]] if self.place.name in broker.topics else []
        else:
            found = [topic for name, topic in broker.topics.items() if self._pattern.matches(name)]
        for topic in found:
            if not topic.deleted:
                self._follow(topic, topic.next_id)
        if self._pattern is not None or self._awaited:
            self._unhook = broker.watch_new_topics(self._made)

    def close(self) -> None:
        """End the tail. Idempotent."""
        self._unhook()
        for withdraw in self._withdraw.values():
            withdraw()
        self._withdraw.clear()
        self._at.clear()

    def end(self) -> None:
        """End a wait: the client is gone, or may be."""
        self.ended = True
        if self._wake is not None:
            self._wake()

    @property
    def living(self) -> bool:
        """Whether more messages may come; False once the topic was deleted."""
        return self._pattern is not None or self._awaited or bool(self._at)

    async def grown(self, seconds: float) -> bool:
        """Wait for messages, at most ``seconds`` and until the shutdown. Returns: whether there are some."""
        return bool(self._hungry) or await self._gateway.waiting.wait_for(self._wait, seconds)

    def take(self) -> list[str]:
        """The next messages of one topic, as JSON; at most a page."""
        if not self._hungry:
            return []
        topic, texts = next(iter(self._hungry)), []
        del self._hungry[topic]
        if topic.deleted:
            del self._at[topic]
            return []
        at = max(self._at[topic], topic.first_id)
        if at < topic.next_id:
            try:
                run, row, at = topic.read(at, min(PAGE_MAX, topic.next_id - at), READ_BYTES)
            except BeingExamined as busy:
                busy.when_done(partial(self._grew, topic))
                return []
            while run is not None and row < len(run) and run.ids[row] < at:
                if self._wanted is None or self._wanted.wants(run, row):
                    texts.append(json.dumps(describe(self.place, topic.name, run, row, 0)))
                row += 1
        self._follow(topic, at)
        return texts

    # -- inside

    def _follow(self, topic: Topic, at: int) -> None:
        self._awaited = False
        self._at[topic] = at
        if at < topic.next_id:
            self._hungry[topic] = None
        else:
            self._withdraw[topic] = topic.when_committed(partial(self._grew, topic))

    def _grew(self, topic: Topic) -> None:
        """Called when messages came, or the topic was deleted."""
        self._hungry[topic] = None
        if self._wake is not None:
            self._wake()

    def _made(self, topic: Topic) -> None:
        if self._pattern is not None:
            if self._pattern.matches(topic.name):
                self._follow(topic, 0)
        elif topic.name == self.place.name:
            self._unhook()
            self._follow(topic, 0)

    def _wait(self, call: Callable[[], None]) -> Callable[[], object]:
        self._wake = call

        def withdraw() -> None:
            self._wake = None

        return withdraw
