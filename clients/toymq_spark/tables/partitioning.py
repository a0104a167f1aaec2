"""Partitioning of an archive's table, by the time of records and by topic: ``--partition-by days(timestamp),topic``."""

import re
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from toymq_py.errors import ConfigError

DEFAULT = "days(timestamp),topic"
UNITS = {"years": "year", "months": "month", "days": "day", "hours": "hour"}
FORMATS = {"years": "%Y", "months": "%Y-%m", "days": "%Y-%m-%d", "hours": "%Y-%m-%d-%H"}
NAMES = {"years": "year", "months": "month", "days": "date", "hours": "hour", "topic": "topic"}
TOPIC = "topic"
NONE = "none"
_TIME = re.compile(r"(years|months|days|hours)\(timestamp\)")


@dataclass(frozen=True, slots=True)
class Key:
    """One partition expression: ``unit`` is a unit of time in ``UNITS``, or ``topic``."""

    unit: str

    @property
    def name(self) -> str:
        """The expression's column in a format without expressions, and its name in directories."""
        return NAMES[self.unit]

    def of(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the expression's value for each record of a batch; records with different values go to different files."""
        if self.unit == TOPIC:
            return batch.column(TOPIC)
        instants = batch.column("timestamp").cast(pa.timestamp("us"))  # of no zone: no table of zones is asked
        return pc.floor_temporal(instants, unit=UNITS[self.unit])

    def text(self, value: pa.Scalar) -> str:
        """Format a value of ``of`` as in a table's metadata: a topic, 2026, 2026-11, 2026-11-28 or 2026-11-28-09."""
        found = value.as_py()
        return str(found) if self.unit == TOPIC else found.strftime(FORMATS[self.unit])


def parse_partitions(text: str) -> tuple[Key, ...]:
    """Parse a list of partition expressions. Raises: ConfigError."""
    parts = [part.strip() for part in text.split(",")]
    if parts == [NONE]:
        return ()
    keys = []
    for part in parts:
        time = _TIME.fullmatch(part)
        if time is None and part != TOPIC:
            raise ConfigError(
                f"invalid partition {part!r}: write topic, {', '.join(f'{unit}(timestamp)' for unit in UNITS)}, a list of "
                f"these, or {NONE}"
            )
        keys.append(Key(TOPIC if time is None else time[1]))
    if len(set(keys)) < len(keys):
        raise ConfigError(f"invalid partitions {text!r}: an expression is there twice")
    return tuple(keys)
