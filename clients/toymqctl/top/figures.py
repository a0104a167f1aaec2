"""Computes the tables of the screen from two successive answers to STATS. Pure: the only clock is the broker's.

A rate is a difference divided by the difference of the broker's uptime, so that a slow network does not distort it. After a
restart of the broker the rates begin anew.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from toymq_py.names import DEAD_LETTERS
from toymqctl.letters import error_of, waiting
from toymqctl.lines import Row
from toymqctl.tables import duration, printable, size

Stats = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Cell:
    """A table cell: its text and its sort key; ``bad`` is highlighted."""

    text: str
    order: float | str
    bad: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """A column with its heading. Numbers are aligned right, and first sorted in descending order."""

    name: str
    number: bool = True


@dataclass(frozen=True, slots=True)
class Line:
    """A row of a table, with a ``key`` that is unique in it."""

    key: str
    cells: tuple[Cell, ...]


TOPIC_COLUMNS = (
    Column("topic", number=False), Column("pub/s"), Column("ack/s"), Column("backlog"), Column("oldest"), Column("inflight"),
    Column("scheduled"), Column("letters"), Column("messages"), Column("size"), Column("consumers"),
    Column("state", number=False),
)  # fmt: skip
CONSUMER_COLUMNS = (
    Column("consumer", number=False), Column("ack/s"), Column("backlog"), Column("oldest"), Column("ready"), Column("inflight"),
    Column("scheduled"), Column("sessions"), Column("last acked"), Column("mode", number=False),
)  # fmt: skip
LETTER_COLUMNS = (
    Column("id"), Column("died", number=False), Column("consumer", number=False), Column("attempts"),
    Column("reason", number=False), Column("key", number=False), Column("size"), Column("payload", number=False),
)  # fmt: skip
PAYLOAD_SHOWN = 60
SAME_START_S = 0.1
"""Starts that are further apart are of two processes, or the wall clock was set: rates begin anew."""


class Figures:
    """The figures of one answer to STATS, with rates since the answer before."""

    def __init__(self, stats: Stats, before: Stats | None = None) -> None:
        """``before``: the previous answer, used only if it is older and of the same broker process."""
        self.stats = stats
        if before is not None and abs(_started_s(stats) - _started_s(before)) > SAME_START_S:
            before = None
        self._elapsed_s = stats["uptime_s"] - before["uptime_s"] if before is not None else 0.0
        self._before = before if self._elapsed_s > 0 else None
        self._topics = {topic["topic"]: topic for topic in stats["topics"]}
        self._topics_before = {topic["topic"]: topic for topic in self._before["topics"]} if self._before is not None else {}

    # -- rates

    def _rate(self, now: float, before: float | None) -> float | None:
        """Return a rate per second; None if unknown. A decrease, after a purge or a seek, counts as 0."""
        if before is None or self._before is None:
            return None
        return max(now - before, 0) / self._elapsed_s

    def total_rate(self, name: str) -> float | None:
        """Return the rate per second of a total in STATS; None when it sums other workers or groups than before."""
        before = self._before
        return self._rate(self.stats[name], before[name] if before is not None and _away(before) == self.away else None)

    def _published_s(self, topic: Stats) -> float | None:
        before = self._topics_before.get(topic["topic"])
        return self._rate(topic["next_id"], before["next_id"] if before is not None else None)

    def _acked_s(self, topic: Stats, consumer: Stats) -> float | None:
        """Return a consumer's acks per second: a published message that is neither in the backlog nor scheduled was acked, or
        dropped by a limit."""
        before = self._topics_before.get(topic["topic"])
        found = next((c for c in before["consumers"] if c["consumer"] == consumer["consumer"]), None) if before else None
        if before is None or found is None:
            return None
        return self._rate(topic["next_id"] - _unacked(consumer), before["next_id"] - _unacked(found))

    # -- tables

    def topics(self) -> list[Line]:
        return [self._topic_line(topic) for topic in self.stats["topics"]]

    def _topic_line(self, topic: Stats) -> Line:
        consumers = topic["consumers"]
        lag_s = max([_lag_s(consumer) for consumer in consumers], default=0.0)
        return Line(topic["topic"], (
            Cell(topic["topic"], topic["topic"]),
            _rate_cell(self._published_s(topic)),
            _rate_cell(_sum(self._acked_s(topic, consumer) for consumer in consumers)),
            _count(max([consumer["backlog"] for consumer in consumers], default=topic.get("backlog", 0))),
            Cell(duration(lag_s) if lag_s else "-", lag_s),
            _count(sum(consumer["inflight"] for consumer in consumers)),
            _count(max([consumer["scheduled"] for consumer in consumers], default=topic.get("scheduled", 0))),
            _count(letters := self.letters(topic["topic"]), bad=letters > 0),
            _count(topic["messages"]),
            Cell(size(topic["bytes"]), topic["bytes"]),
            _count(len(consumers)),
            Cell(topic["state"], topic["state"], bad=topic["state"] != "ok"),
        ))  # fmt: skip

    def consumers(self, name: str) -> list[Line]:
        """Return the table of a topic's consumers; empty when the topic was deleted."""
        topic = self._topics.get(name)
        return [self._consumer_line(topic, consumer) for consumer in topic["consumers"]] if topic is not None else []

    def _consumer_line(self, topic: Stats, consumer: Stats) -> Line:
        lag_s = _lag_s(consumer)
        mode = consumer["mode"] + (" (paused)" if consumer["paused"] else "")
        last = consumer["last_acked"] if consumer["has_acked"] else -1
        return Line(consumer["consumer"], (
            Cell(consumer["consumer"], consumer["consumer"]),
            _rate_cell(self._acked_s(topic, consumer)),
            _count(consumer["backlog"]),
            Cell(duration(lag_s) if lag_s else "-", lag_s),
            _count(consumer["ready"]),
            _count(consumer["inflight"]),
            _count(consumer["scheduled"]),
            _count(consumer["sessions"], bad=not consumer["sessions"] and consumer["backlog"] > 0),
            Cell(str(last) if last >= 0 else "-", last),
            Cell(mode, mode, bad=consumer["paused"]),
        ))  # fmt: skip

    def has(self, name: str) -> bool:
        return name in self._topics

    def letters(self, name: str) -> int:
        """Return the number of a topic's dead letters that were neither redriven nor discarded."""
        found = self._topics.get(name + DEAD_LETTERS)
        return 0 if found is None else waiting(found)

    def newest_id(self, name: str) -> int:
        """Return the id that the next message of a topic gets; 0 when the topic does not exist."""
        return int(self._topics[name]["next_id"]) if name in self._topics else 0

    # -- the broker itself

    def overview(self) -> list[list[Cell]]:
        """Return the two lines at the top of the screen."""
        stats = self.stats
        bad = sum(topic["state"] != "ok" for topic in stats["topics"])
        rates = [
            Cell(f"{name} {_rate_text(self.total_rate(total))}", 0)
            for name, total in (("pub/s", "publish_total"), ("deliver/s", "deliver_total"), ("ack/s", "ack_total"))
        ]
        errors = self.total_rate("error_total")
        loop_lag_s = stats.get("loop_lag_s")  # an older broker has none
        return [
            [
                *rates,
                Cell(f"errors/s {_rate_text(errors)}", 0, bad=bool(errors)),
                Cell(f"connections {stats['connections']}", 0),
                Cell(f"topics {len(stats['topics'])}", 0),
                *([Cell(f"{bad} not ok", 0, bad=True)] if bad else []),
            ],
            [
                Cell(f"fsync p99 {stats['fsync_p99_s'] * 1000:.1f} ms ({stats['fsync']})", 0),
                Cell("loop lag -" if loop_lag_s is None else f"loop lag {loop_lag_s * 1000:.1f} ms", 0),
                Cell(f"memory {size(stats['rss_bytes'])}", 0),
                Cell(f"disk free {size(stats['disk_free_bytes'])}", 0),
                *([Cell("DISK LOW: publishing is refused", 0, bad=True)] if stats["disk_low"] else []),
                Cell(f"up {duration(stats['uptime_s'])}", 0),
            ],
        ]

    @property
    def away(self) -> list[str]:
        """The workers or groups that these figures do not include."""
        return _away(self.stats)

    @property
    def time(self) -> str:
        """The time of these figures, by the broker's wall clock."""
        return datetime.fromtimestamp(self.stats["time_ms"] / 1000, UTC).strftime("%H:%M:%SZ")


def _away(stats: Stats) -> list[str]:
    return [one["place"] for one in stats.get("away", ())]


def letter_lines(letters: Iterable[Row]) -> list[Line]:
    """Return the table of dead letters, from their headers (docs/dead-letters.md)."""
    return [_letter_line(letter) for letter in letters]


def _letter_line(letter: Row) -> Line:
    headers = letter.headers
    attempts = headers.get("toymq-attempts", "-")
    died = datetime.fromtimestamp(letter.ts_ns // 1_000_000_000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    payload = letter.payload[: PAYLOAD_SHOWN * 4].decode("utf-8", "replace")[:PAYLOAD_SHOWN]
    why = error_of(headers) or headers.get("toymq-reason", "-")
    texts = (headers.get("toymq-consumer", "-"), why, letter.key.decode("ascii", "replace") or "-")
    consumer, reason, key = (Cell(printable(text), text) for text in texts)
    return Line(str(letter.id), (
        Cell(str(letter.id), letter.id),
        Cell(died, letter.ts_ns),
        consumer,
        Cell(printable(attempts), int(attempts) if attempts.isascii() and attempts.isdigit() else -1),
        reason,
        key,
        Cell(size(len(letter.payload)), len(letter.payload)),
        Cell(printable(payload), payload),
    ))  # fmt: skip


def arranged(lines: Iterable[Line], wanted: str, column: int, *, reverse: bool) -> list[Line]:
    """Return the lines that contain ``wanted``, ignoring case, sorted by a column, then by key."""
    found = [line for line in lines if any(_has(cell, wanted.casefold()) for cell in line.cells)]
    found.sort(key=lambda line: line.key)
    by: Callable[[Line], Any] = lambda line: line.cells[column].order  # noqa: E731 (typed)
    found.sort(key=by, reverse=reverse)
    return found


def _has(cell: Cell, wanted: str) -> bool:
    return isinstance(cell.order, str) and wanted in cell.order.casefold()


def _started_s(stats: Stats) -> float:
    """The broker's start time by its own clock, in seconds since the epoch."""
    return float(stats["time_ms"] / 1000 - stats["uptime_s"])


def _unacked(consumer: Stats) -> int:
    return int(consumer["backlog"] + consumer["scheduled"])


def _lag_s(consumer: Stats) -> float:
    return float(consumer["oldest_unacked_age_s"]) if consumer["backlog"] else 0.0


def _sum(rates: Iterable[float | None]) -> float | None:
    known: Sequence[float] = [rate for rate in rates if rate is not None]
    return sum(known) if known else None


def _count(value: int, *, bad: bool = False) -> Cell:
    return Cell(str(value), value, bad)


def _rate_text(rate: float | None) -> str:
    if rate is None:
        return "-"
    return f"{rate:.1f}" if 0 < rate < 100 else f"{rate:.0f}"


def _rate_cell(rate: float | None) -> Cell:
    return Cell(_rate_text(rate), -1.0 if rate is None else rate)
