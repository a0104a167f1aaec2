"""Gathers the replies of all workers into one: lists of topics, figures, and subscriptions to patterns. ADR 0157. Pure."""

import json
from collections.abc import Callable, Sequence
from typing import Any

from toymq_py.merging import merged_stats, merged_topics
from toymq_py.names import is_dead_letters
from toymq_py.partitions import PARTITIONS, common_settings, described_whole, half_made
from toymq_py.placement import Place
from toymq_py.protocol import Config, Create, Describe, Forget, Purge, Redrive, Seek, encode_error, encode_ok
from toymq_py.session.listing import Listed, Listing, json_reply, listed_behind

NO_SUCH = (b"ERR NO_SUCH_",)
NOT_HERE = (*NO_SUCH, b"ERR MOVED ")
"""The beginnings of the answer of a worker that has nothing of a topic. One that knows of no partitions says where a plain
topic would be."""


NO_TOPIC = b"ERR MOVED ", b"ERR NO_SUCH_TOPIC "
"""The beginnings of the answer of a place that does not know of a partitioned topic that others know."""


def told(name: str, lacks: tuple[bytes, ...], reply: bytes) -> bytes:
    """Convert a place's reply for the client. ``lacks`` are the beginnings of a reply that does not know the topic: the client
    is told that the topic is being made or deleted, since other places know it."""
    return encode_error(half_made(name)) if reply.startswith(lacks) else reply


class Gathering:
    """The replies of all workers or groups to one command, to be merged into one reply."""

    def __init__(
        self, workers: int, first: Place | None = None, grow: Callable[[int], None] = lambda size: None
    ) -> None:
        """``first``: the worker or group whose reply comes first; None: the lowest number. ``grow``: see ``Listing``."""
        self._grow = grow
        self.missing = workers
        self._first = first
        self.replies: dict[Place, bytes] = {}
        self._listing: Listing | None = None

    def add(self, worker: Place, reply: bytes) -> bool:
        """Add a worker's reply. Returns: whether no more replies are missing."""
        self.replies[worker] = reply
        self.missing -= 1
        return not self.missing

    @property
    def refusal(self) -> bytes | None:
        """The first ``ERR`` among the replies, which becomes the reply."""
        return next((reply for reply in self._ordered() if reply.startswith(b"ERR")), None)

    def total(self) -> bytes:
        """``OK`` with the sum of the replies' numbers."""
        return self.refusal or encode_ok(sum(int(reply.split()[1]) for reply in self.replies.values()))

    def sum_of_some(self, lacks: tuple[bytes, ...] = NO_SUCH) -> bytes:
        """As ``total``, without the replies of workers that lack the topic, which begin with ``lacks``; if all lack it, the
        first of their errors."""
        found = [reply for _, reply in sorted(self.replies.items())]
        there = [reply for reply in found if not reply.startswith(lacks)] or found
        refusal = next((reply for reply in there if reply.startswith(b"ERR")), None)
        return refusal or encode_ok(sum(int(reply.split()[1]) for reply in there))

    def of_whole(self, merge: "Merge", name: str) -> bytes | None:
        """Merge the replies for a partitioned topic. If only some places know the topic, it is being made or deleted, and the
        merged reply is that error."""
        lacks = NO_TOPIC[:1] if is_dead_letters(name) else NO_TOPIC  # partitions without dead letters lack those
        if 0 < sum(reply.startswith(lacks) for reply in self.replies.values()) < len(self.replies):
            return encode_error(half_made(name))
        return merge(self)

    def settings(self) -> bytes:
        """The reply to CONFIG of a partitioned topic: the settings that all its partitions have."""
        return self.refusal or json_reply(common_settings([one for one in self._documents() if one is not None]))

    def described(self) -> bytes:
        """The reply to DESCRIBE of a partitioned topic."""
        if self.refusal is not None:
            return self.refusal
        found = self._documents()
        parts = [part for one in found for part in one["parts"]]
        return json_reply(described_whole(found[0]["topic"], found[0][PARTITIONS], parts))

    def topics(self) -> bytes | None:
        """The reply to TOPICS; None means: call again, as for a ``Listing``."""
        return self._listed(lambda: (b"[", merged_topics(self._documents()), b"]"))

    def stats(self, away: Sequence[dict[str, Any]] | None = None) -> bytes | None:
        """The reply to STATS; None means: call again. ``away``: for ``STATS partial=1``, the workers or groups that did not
        answer."""

        def begin() -> Listed:
            found = self._documents()
            lists = [one.pop("topics", []) for one in found]
            figures = merged_stats(found) if away is None else {**merged_stats(found), "away": away}
            return listed_behind(figures, merged_topics(lists))

        return self._listed(begin)

    def _listed(self, begin: Callable[[], Listed]) -> bytes | None:
        if self.refusal is not None:
            return self.refusal
        self._listing = self._listing or Listing(begin, self._grow)
        return self._listing.make()

    def _documents(self) -> list[Any]:
        return [json.loads(reply.partition(b"\n")[2]) for reply in self._ordered()]

    def _ordered(self) -> list[bytes]:
        return [self.replies[place] for place in sorted(self.replies, key=lambda place: (place != self._first, place))]


Merge = Callable[[Gathering], bytes | None]
WHOLE: dict[type, Merge] = {
    Config: Gathering.settings, Create: Gathering.total, Describe: Gathering.described,
    Forget: Gathering.sum_of_some, Purge: Gathering.total, Redrive: Gathering.sum_of_some, Seek: Gathering.sum_of_some,
}  # fmt: skip
"""Commands for a partitioned topic that every worker is asked for, and how their replies become one."""
