"""JSON replies; long lists of topics are made in slices. Contract: protocol.md, "JSON shapes"."""

import json
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from toymq_py.protocol import encode_json

TOPICS_PER_TURN = 64
"""Topics that one slice describes, in a millisecond."""


def json_reply(value: Any) -> bytes:
    """Encode a JSON reply."""
    return encode_json(json.dumps(value).encode())


Listed = tuple[bytes, Iterator[dict[str, Any]], bytes]
"""A list of topics: the JSON ahead of it, the topics, and the JSON behind it."""


def listed_behind(figures: dict[str, Any], topics: Iterator[dict[str, Any]]) -> Listed:
    """The document of STATS: the figures, with the list of topics behind them."""
    return json.dumps(figures).encode()[:-1] + b', "topics": [', topics, b"]}"


class Listing:
    """A JSON document with a list of topics, made in slices: five thousand of them at once would hold the loop for 50 ms.

    ``begin`` is called when the reply is at the head; it returns the JSON before the list, the topics, and the JSON after it.
    ``grow`` counts each slice's bytes for the connection, and raises QueueFull: the lists that hundreds of connections ask for
    at a time would fill memory before any is written.
    """

    __slots__ = ("_begin", "_closing", "_grow", "_items", "_pieces", "_separator")

    def __init__(self, begin: Callable[[], Listed], grow: Callable[[int], None]) -> None:
        self._begin = begin
        self._grow = grow
        self._items: Iterator[dict[str, Any]] | None = None
        self._pieces: list[bytes] = []
        self._closing = self._separator = b""

    def make(self) -> bytes | None:
        """Make a slice, and the reply after the last; see ``replies.MakeReply``. Raises: BadName, QueueFull."""
        pieces = self._pieces
        if self._items is None:
            opening, self._items, self._closing = self._begin()
            pieces.append(opening)
        described = [json.dumps(item) for item in islice(self._items, TOPICS_PER_TURN)]
        if described:
            pieces.append(self._separator + ", ".join(described).encode())
            self._separator = b", "
            self._grow(len(pieces[-1]))
        if len(described) == TOPICS_PER_TURN:
            return None
        pieces.append(self._closing)
        return encode_json(b"".join(pieces))
