"""FETCH: records by id, without a consumer. Contract: protocol.md, "FETCH"."""

import asyncio
from collections.abc import Callable

from toymq_py.errors import NoSuchTopic
from toymq_py.protocol import Fetch, encode_batch_header
from toymq_py.session.deliveries import Deliveries
from toymq_py.session.replies import WAIT_COST_BYTES, PendingReply, Replies
from toymq_py.topic import Topic

FETCH_BYTES_MAX = 2 * 1024 * 1024
"""The most that one FETCH reads, except for one larger record: a MiB blocks the loop for 5 ms."""


class Fetches:
    """The FETCHes of one session that wait for a commit."""

    __slots__ = ("_deliveries", "_loop", "_replies", "_waits")

    def __init__(self, replies: Replies, deliveries: Deliveries, loop: asyncio.AbstractEventLoop) -> None:
        self._replies = replies
        self._deliveries = deliveries
        self._loop = loop
        self._waits: dict[Callable[[], None], None] = {}

    def end_waits(self) -> bool:
        """Answer all that wait, empty. Returns: whether any did."""
        waits = list(self._waits)
        for finish in waits:
            finish()
        return bool(waits)

    def fetch(self, topic: Topic, command: Fetch) -> None:
        """Reply with the records that are there when the reply is at the head, or wait for one."""
        waits = command.wait_ms and command.from_id == topic.next_id
        held = self._replies.hold(PendingReply(WAIT_COST_BYTES) if waits else None)

        def make() -> bytes:
            max_bytes = self._deliveries.bytes_to_take(min(command.max_bytes, FETCH_BYTES_MAX))
            _check_incarnation(living(topic), command.incarnation)
            frames, count, next_id = topic.fetch(command.from_id, command.max_count, max_bytes)
            self._deliveries.check_room(len(frames))
            return b"%b%b\n" % (encode_batch_header(topic.name, count, next_id, len(frames)), frames)

        if waits:
            self._wait_for_commit(topic, command.wait_ms / 1000, lambda: self._replies.fill(held, make))
        else:
            self._replies.fill(held, make)

    def _wait_for_commit(self, topic: Topic, wait_s: float, done: Callable[[], None]) -> None:
        """Call ``done`` at the next commit, after the time, or when the stream ends."""

        def finish() -> None:
            if finish in self._waits:
                self._waits.pop(finish, None)
                timer.cancel()
                withdraw()
                done()

        self._waits[finish] = None
        timer = self._loop.call_later(wait_s, finish)
        withdraw = topic.when_committed(finish)


def _check_incarnation(topic: Topic, wanted: str | None) -> None:
    """Raises: NoSuchTopic when the client means a topic that was deleted, and the one of its name was made anew since."""
    present = topic.settings_queue.incarnation
    if wanted is not None and wanted != present:
        raise NoSuchTopic(f"{topic.name} was made anew: its incarnation is {present or 'new'}, and not {wanted[:64]}")


def living(topic: Topic) -> Topic:
    """Return the topic. Raises: NoSuchTopic when it was deleted since the command, PlacementUnknown when it was moved."""
    if topic.deleted:
        raise topic.context.moved or NoSuchTopic(f"{topic.name} was deleted")
    return topic
