"""Describes dead letters by their headers (docs/dead-letters.md), and groups them by failure."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from toymq_py.names import whole_name
from toymqctl.lines import Row


def waiting(topic: dict[str, Any]) -> int:
    """Return how many dead letters, of a described dead-letter topic, were neither redriven nor discarded. This is not computed
    from the ranges in `redriven`: DESCRIBE has only the first thousand, and they include lost records."""
    return int(topic.get("letters", topic["messages"]))


def described(row: Row, settled: bool) -> dict[str, Any]:
    """Describe a dead letter as a dict, without its payload and traceback.

    ``settled``: it was redriven or discarded; the broker does not record which.
    """
    headers = row.headers
    return {
        "topic": row.topic,
        "id": row.id,
        "ts_ns": row.ts_ns,
        "origin_topic": headers.get("toymq-origin-topic"),
        "origin_id": _number(headers.get("toymq-origin-id")),
        "key": row.key.decode("ascii", "replace") or None,
        "consumer": headers.get("toymq-consumer"),
        "attempts": _number(headers.get("toymq-attempts")),
        "reason": headers.get("toymq-reason"),
        "error": error_of(headers),
        "failed_at_ms": _number(headers.get("toymq-failed-at")),
        "redrives": _number(headers.get("toymq-redrives")) or 0,
        "settled": settled,
        "bytes": len(row.payload),
    }


def error_of(headers: dict[str, str]) -> str | None:
    """Return type and text of a dead letter's error, ``ValueError: no such template``; None if it has none."""
    texts = [text for name in ("toymq-error-type", "toymq-error") if (text := headers.get(name))]
    return ": ".join(texts) or None


def traceback_of(headers: dict[str, str]) -> list[str]:
    """Return the lines of a dead letter's traceback; [] if it has none."""
    try:
        text = json.loads(headers.get("toymq-traceback", ""))
    except (ValueError, RecursionError):
        return []
    return text.split("\n") if isinstance(text, str) else []


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) <= 20 else None


@dataclass(slots=True)
class FailureGroup:
    """The dead letters of one consumer with the same reason and type of error, over all partitions of a topic: ``parts`` has
    count, first and last id for each partition. ``oldest`` and ``newest`` are described letters."""

    oldest: dict[str, Any]
    newest: dict[str, Any]
    parts: dict[str, tuple[int, int, int]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return sum(count for count, _, _ in self.parts.values())

    def add(self, letter: dict[str, Any]) -> None:
        """Add a letter to the group. Assumes that the letters of each topic come in the order of their ids."""
        topic, msg_id = letter["topic"], letter["id"]
        count, first, _ = self.parts.get(topic, (0, msg_id, msg_id))
        self.parts[topic] = count + 1, first, msg_id
        if letter["ts_ns"] < self.oldest["ts_ns"]:
            self.oldest = letter
        if letter["ts_ns"] >= self.newest["ts_ns"]:
            self.newest = letter

    def to_json(self) -> dict[str, Any]:
        """Return the group for JSON. With several partitions only ``parts`` has ids, which mean nothing without their
        partition."""
        parts = [{"topic": topic, "count": found[0], "first_id": found[1], "last_id": found[2]}
                 for topic, found in self.parts.items()]  # fmt: skip
        only = parts[0] if len(parts) == 1 else {"topic": whole_name(self.newest["topic"]), "first_id": None, "last_id": None}
        named = {name: self.newest[name] for name in ("consumer", "reason", "error_type")}
        last = {"last_ts_ns": self.newest["ts_ns"], "last_error": self.newest["error"], "parts": parts}
        return only | {"count": self.count} | named | last


def grouped(letters: Iterable[tuple[Row, bool]]) -> list[FailureGroup]:
    """Group dead letters, the most frequent group first. The text of an error is not compared, since it differs from message to
    message."""
    found: dict[tuple[str | None, ...], FailureGroup] = {}
    for row, settled in letters:
        letter = described(row, settled) | {"error_type": row.headers.get("toymq-error-type")}
        key = (letter["consumer"], letter["reason"], letter["error_type"])
        found.setdefault(key, FailureGroup(letter, letter)).add(letter)
    return sorted(found.values(), key=lambda group: -group.count)
