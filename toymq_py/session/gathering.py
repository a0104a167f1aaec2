"""One reply made of those of all workers: lists of topics, figures, and subscriptions to patterns. ADR 0157. Pure."""

import json
from typing import Any

from toymq_py.merging import merged_stats, merged_topics
from toymq_py.protocol import encode_json, encode_ok


class Gathering:
    """The replies to one command that was passed on to every worker."""

    def __init__(self, workers: int) -> None:
        self.missing = workers
        self.replies: dict[int, bytes] = {}

    def add(self, worker: int, reply: bytes) -> bool:
        """Returns: whether it was the last."""
        self.replies[worker] = reply
        self.missing -= 1
        return not self.missing

    @property
    def refusal(self) -> bytes | None:
        """The first ``ERR``, which is the reply then."""
        return next((reply for _, reply in sorted(self.replies.items()) if reply.startswith(b"ERR")), None)

    def total(self) -> bytes:
        """``OK`` with the sum of the numbers."""
        return self.refusal or encode_ok(sum(int(reply.split()[1]) for reply in self.replies.values()))

    def topics(self) -> bytes:
        """The reply to TOPICS."""
        return self.refusal or encode_json(json.dumps(merged_topics(self._documents())).encode())

    def stats(self) -> bytes:
        """The reply to STATS."""
        if self.refusal is not None:
            return self.refusal
        found = self._documents()
        lists = [one.pop("topics", []) for one in found]
        return encode_json(json.dumps({**merged_stats(found), "topics": merged_topics(lists)}).encode())

    def _documents(self) -> list[Any]:
        return [json.loads(reply.partition(b"\n")[2]) for _, reply in sorted(self.replies.items())]
