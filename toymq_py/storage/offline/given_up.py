"""``given-up.json``: the ids of a topic that are lost, and that no rule or command removed. ADR 0086.

A backup and the uploads of ``--tier`` read the file: the copies that they hold of these ids stay.

In a data directory these are the ids that ``toymq repair`` has entered in the offsets as removed, as if retention had removed
them on purpose. In a backup they are the records of segments that the source has lost: their copies stay.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from toymq_py.errors import DamagedData
from toymq_py.records import MSG_ID_MAX, IdRange
from toymq_py.storage import checked_json
from toymq_py.storage.fs import FileSystem, replace_file
from toymq_py.storage.id_ranges import subtract, union
from toymq_py.storage.offsets import OffsetsState
from toymq_py.storage.segment_heads import Head

FILE_NAME = "given-up.json"
_NAME = "lost"


@dataclass(frozen=True, slots=True)
class GivenUp:
    """The ids that the repairs of a topic have given up."""

    ids: list[IdRange] = field(default_factory=list)
    """The ids that were given up, ascending."""
    heads: dict[int, Head] = field(default_factory=dict)
    """The heads of this log's segments that were known, by first id: a copy of one that is gone is known by its head."""


def load(fs: FileSystem, path: str) -> GivenUp:
    """Load the file of the topic in a directory. If it is damaged, every id may have been given up. Raises: OSError."""
    try:
        data = checked_json.read(fs, f"{path}/{FILE_NAME}")
        if data is None:
            return GivenUp()
        found = checked_json.decode(_NAME, data)
        ids = [(first, last) for first, last in map(checked_json.numbers, found["ids"])]
        rows = [checked_json.numbers(row) for row in found["heads"]]
        return GivenUp(ids, {base_id: (time_ns, checksum) for base_id, time_ns, checksum in rows})
    except (DamagedData, KeyError, TypeError, ValueError):
        return GivenUp([(0, MSG_ID_MAX)])


def without(state: OffsetsState, ids: Iterable[IdRange]) -> OffsetsState:
    """The offsets, with the given-up ids taken out of ``removed``: copies may still have their records."""
    gone = subtract([*([(0, state.first_id - 1)] if state.first_id else []), *state.removed], ids)
    first_id = 0
    if gone and gone[0][0] == 0:
        first_id, gone = gone[0][1] + 1, gone[1:]
    return replace(state, first_id=first_id, removed=tuple(gone))


def add(fs: FileSystem, path: str, ids: Iterable[IdRange], heads: Mapping[int, Head]) -> None:
    """Put more ids, and the known heads, on stable storage. Raises: OSError."""
    before = load(fs, path)
    rows = [[base_id, *head] for base_id, head in sorted({**before.heads, **heads}.items())]
    value = {"ids": union([*before.ids, *ids]), "heads": rows}
    replace_file(fs, f"{path}/{FILE_NAME}", checked_json.encode(_NAME, value))
