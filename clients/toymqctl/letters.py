"""Dead letters by their headers (docs/dead-letters.md), and groups of equal failures."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from toymq_py.names import whole_name
from toymqctl.lines import Row


def waiting(topic: dict[str, Any]) -> int:
    """How many letters of a described dead-letter topic neither went back nor were discarded. The ranges in `redriven` do not
    say it: DESCRIBE has the first thousand, and lost records are among them."""
    return int(topic.get("letters", topic["messages"]))


def described(row: Row, settled: bool) -> dict[str, Any]:
    """A dead letter without its payload and traceback.

    ``settled``: it went back, or was discarded: the broker does not keep which of both.
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
    """Type and text of the error: ``ValueError: no such template``; None for none."""
    texts = [text for name in ("toymq-error-type", "toymq-error") if (text := headers.get(name))]
    return ": ".join(texts) or None


def traceback_of(headers: dict[str, str]) -> list[str]:
    """Lines of the traceback; empty without one."""
    try:
        text = json.loads(headers.get("toymq-traceback", ""))
    except (ValueError, RecursionError):
        return []
    return text.split("\n") if isinstance(text, str) else []


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) <= 20 else None


@dataclass(slots=True)
class FailureGroup:
    """Dead letters of one consumer with one reason and one type of error. Of a partitioned topic, those of all partitions:
    ``parts`` has count, first and last id of each topic. ``oldest`` and ``newest`` are letters."""

    oldest: dict[str, Any]
    newest: dict[str, Any]
    parts: dict[str, tuple[int, int, int]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return sum(count for count, _, _ in self.parts.values())

    def add(self, letter: dict[str, Any]) -> None:
        """Count a letter; those of a topic come by their ids."""
        topic, msg_id = letter["topic"], letter["id"]
        count, first, _ = self.parts.get(topic, (0, msg_id, msg_id))
        self.parts[topic] = count + 1, first, msg_id
        if letter["ts_ns"] < self.oldest["ts_ns"]:
            self.oldest = letter
        if letter["ts_ns"] >= self.newest["ts_ns"]:
            self.newest = letter

    def to_json(self) -> dict[str, Any]:
        """Ids of several partitions are in ``parts`` alone: without their topic they mean nothing."""
        parts = [{"topic": topic, "count": found[0], "first_id": found[1], "last_id": found[2]}
                 for topic, found in self.parts.items()]  # fmt: skip
        only = parts[0] if len(parts) == 1 else {"topic": whole_name(self.newest["topic"]), "first_id": None, "last_id": None}
        named = {name: self.newest[name] for name in ("consumer", "reason", "error_type")}
        last = {"last_ts_ns": self.newest["ts_ns"], "last_error": self.newest["error"], "parts": parts}
        return only | {"count": self.count} | named | last


def grouped(letters: Iterable[tuple[Row, bool]]) -> list[FailureGroup]:
    """Group dead letters, the most frequent group first. The text of an error does not count: it differs from message to
    message."""
    found: dict[tuple[str | None, ...], FailureGroup] = {}
    for row, settled in letters:
        letter = described(row, settled) | {"error_type": row.headers.get("toymq-error-type")}
        key = (letter["consumer"], letter["reason"], letter["error_type"])
        found.setdefault(key, FailureGroup(letter, letter)).add(letter)
    return sorted(found.values(), key=lambda group: -group.count)
