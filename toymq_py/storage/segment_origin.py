"""Tells which log a segment belongs to by the times of its records, where its first record is damaged. ADR 0222.

Two files know times of a segment: its head, since inside a segment times never fall (ADR 0050); and its sidecar, at the entries
of its index and at the last record. The sidecar may have come with the file: it is this log's if it begins at the time of the
head.
"""

from contextlib import suppress

from toymq_py.errors import DamagedData
from toymq_py.storage import checked_json
from toymq_py.storage.fs import FileSystem
from toymq_py.storage.record import Columns
from toymq_py.storage.scanner import scan_segment
from toymq_py.storage.segment import BASE_ID_MAX, parse_sidecar


def is_of_log(fs: FileSystem, path: str, base_id: int, head_ns: int, hidden_bytes: int = 0) -> bool | None:
    """Whether the intact records of a segment belong to the log whose head has the time ``head_ns``; None when that is unknown.
    Reads the whole file.

    Args:
        hidden_bytes: how many bytes at the beginning of the file are ignored.

    Raises: OSError.
    """
    known = _times_of_sidecar(fs, path, base_id)
    newest_ns, same, other = 0, 0, 0

    def visit(_position: int, first_id: int, columns: Columns) -> None:
        nonlocal newest_ns, same, other
        times = columns.ts_ns
        newest_ns = max(newest_ns, *times[-1:], 0)
        found = [times[at - first_id] == time_ns for at, time_ns in known.items() if 0 <= at - first_id < len(times)]
        same, other = same + sum(found), other + len(found) - sum(found)

    scan_segment(fs, path, base_id, visit=visit, foreign_head_bytes=hidden_bytes)
    if 0 < newest_ns < head_ns:
        return False
    if base_id in known and bool(same) != bool(other):
        return (known[base_id] == head_ns) is bool(same)
    return None


def reached_by(fs: FileSystem, path: str, first_id: int) -> int:
    """The id behind the last record of a file that begins with the record ``first_id``, whatever its name. Raises: OSError."""
    next_id = scan_segment(fs, path, first_id).segment.next_id
    return next_id if next_id <= BASE_ID_MAX else 0  # no log comes so far


def _times_of_sidecar(fs: FileSystem, path: str, base_id: int) -> dict[int, int]:
    """The record times in the sidecar, by id, whatever file it was written for; empty without a sidecar."""
    with suppress(DamagedData, OSError, KeyError, TypeError):
        data = checked_json.read(fs, path[:-4] + ".idx") or b""
        made_of = parse_sidecar(data, path, base_id, BASE_ID_MAX, checked_json.decode("segment", data)["size"])
        if made_of is not None and made_of.index_ids:
            times = dict(zip(made_of.index_ids, made_of.index_ts_ns, strict=True))
            return times if made_of.damages else {**times, made_of.next_id - 1: made_of.newest_ts_ns}
    return {}
