"""Dead letters by their headers (docs/dead-letters.md), and groups of equal failures."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from toymqctl.lines import Row


def waiting(topic: dict[str, Any]) -> int:
    """How many letters of a described dead-letter topic neither went back nor were discarded. The ranges in `redriven` do not
    say it: DESCRIBE has the first thousand, and lost records are among them."""
    return int(topic.get("letters", topic["messages"]))


def described(row: Row, went_back: bool) -> dict[str, Any]:
    """A dead letter without its payload and traceback."""
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
        "redriven": went_back,
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
    """Dead letters of one topic and consumer with one reason and one type of error; ``newest`` is the last."""

    count: int
    first_id: int
    newest: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        named = {name: self.newest[name] for name in ("topic", "consumer", "reason", "error_type")}
        last = {"first_id": self.first_id, "last_id": self.newest["id"], "last_ts_ns": self.newest["ts_ns"]}
        return {"count": self.count, **named, **last, "last_error": self.newest["error"]}


def grouped(letters: Iterable[tuple[Row, bool]]) -> list[FailureGroup]:
    """Group dead letters, the most frequent group first. The text of an error does not count: it differs from message to
    message."""
    found: dict[tuple[str | None, ...], FailureGroup] = {}
    for row, went_back in letters:
        letter = described(row, went_back) | {"error_type": row.headers.get("toymq-error-type")}
        key = (row.topic, letter["consumer"], letter["reason"], letter["error_type"])
        group = found.setdefault(key, FailureGroup(0, row.id, letter))
        group.count += 1
        group.newest = letter
    return sorted(found.values(), key=lambda group: -group.count)
