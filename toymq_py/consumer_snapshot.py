"""The state of a consumer that survives a restart, and its checked JSON object in ``offsets.json``.

Contract: storage.md, "offsets.json". Knows nothing of how a consumer keeps its state.
"""

from dataclasses import dataclass
from itertools import chain
from operator import le, lt
from typing import Any

from toymq_py.errors import DamagedData
from toymq_py.id_rows import IdRows
from toymq_py.records import MSG_ID_MAX


@dataclass(frozen=True, slots=True)
class ConsumerSnapshot:
    """The state of a consumer that survives a restart.

    ``has_acked``: whether ``last_acked`` is valid; if not, all ids below ``start`` count as acked.
    ``acked_above``: ranges of ids at or above that point that were acked or skipped. ``attempts``:
    the unacked ids that were delivered, with the number of attempts. Both ascend, and their
    ranges are disjoint.
    """

    since_ns: int
    start: int
    has_acked: bool
    last_acked: int
    acked_above: IdRows
    attempts: IdRows

    @property
    def floor(self) -> int:
        """The id below which all ids count as acked, ignoring ``acked_above``."""
        return self.last_acked + 1 if self.has_acked else self.start

    def to_json(self) -> dict[str, Any]:
        """Make the consumer's object for ``offsets.json``. Ranges stay in columns, so the cost does not grow with their
        number."""
        return {
            "since_ns": self.since_ns,
            "start": self.start,
            "has_acked": self.has_acked,
            "last_acked": self.last_acked,
            "acked_above": self.acked_above,
            "attempts": self.attempts,
        }

    @classmethod
    def from_json(cls, value: object) -> "ConsumerSnapshot":
        """Parse the consumer's object in ``offsets.json``.

        Raises: DamagedData when a field is missing, unknown, of another type, or contradicts
            another one.
        """
        if not isinstance(value, dict) or value.keys() != _FIELDS:
            raise DamagedData(f"a consumer must be an object of {', '.join(sorted(_FIELDS))}")
        has_acked = value["has_acked"]
        if not isinstance(has_acked, bool):
            raise DamagedData("has_acked must be true or false")
        snapshot = cls(
            since_ns=_u64("since_ns", value["since_ns"]),
            start=_u64("start", value["start"]),
            has_acked=has_acked,
            last_acked=_u64("last_acked", value["last_acked"]),
            acked_above=_rows("acked_above", value["acked_above"], 2),
            attempts=_rows("attempts", value["attempts"], 3),
        )
        if snapshot.floor < snapshot.start:
            raise DamagedData("last_acked lies below start")
        if any(0 in block[2] for block in snapshot.attempts.blocks):
            raise DamagedData("attempts must be counted from 1")
        _check_ascending("acked_above", snapshot.floor, snapshot.acked_above)
        _check_ascending("attempts", snapshot.floor, snapshot.attempts)
        if snapshot.acked_above and snapshot.attempts:
            together = sorted(row[:2] for row in chain(snapshot.acked_above, snapshot.attempts))
            _check_ascending("acked_above with attempts", snapshot.floor, IdRows.of(2, together))
        return snapshot


_FIELDS = frozenset(("since_ns", "start", "has_acked", "last_acked", "acked_above", "attempts"))


def _u64(field: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MSG_ID_MAX:
        raise DamagedData(f"{field} must hold integers from 0 to {MSG_ID_MAX}")
    return value


def _rows(field: str, value: object, width: int) -> IdRows:
    if isinstance(value, IdRows) and value.width == width:
        return value
    if not isinstance(value, list):
        raise DamagedData(f"{field} must be a list")
    try:
        return IdRows.of(width, value)
    except (OverflowError, TypeError, ValueError):
        raise DamagedData(f"{field} must hold lists of {width} integers from 0 to {MSG_ID_MAX}") from None


def _check_ascending(field: str, floor: int, rows: IdRows) -> None:
    """Raise DamagedData unless the ranges ascend from ``floor`` and are disjoint."""
    position = floor
    for firsts, lasts, *_ in rows.blocks:
        if firsts[0] < position or not all(map(le, firsts, lasts)) or not all(map(lt, lasts, firsts[1:])):
            raise DamagedData(f"{field} must ascend from {floor} and not overlap")
        position = lasts[-1] + 1
