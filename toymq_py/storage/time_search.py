"""Finds a record by its time."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

from toymq_py.records import Records
from toymq_py.storage.segment import Segment, newest_times


class _Log(Protocol):
    @property
    def segments(self) -> Sequence[Segment]: ...

    @property
    def first_id(self) -> int: ...

    @property
    def committed_id(self) -> int: ...

    def read(self, from_id: int, max_count: int) -> tuple[Records | None, int, int]: ...


def id_at_time(log: _Log, ts_ns: int, now_ns: int) -> int:
    """Find a record by time; see ``Log.id_at_time``. ``now_ns``: the wall clock; a segment with times ahead of it counts as
    ending at the time of the next segment's first record."""
    for segment, newest_ns in zip(log.segments, newest_times(log.segments, now_ns), strict=True):
        if newest_ns < ts_ns or segment.next_id == segment.base_id:
            continue
        from_id = max(segment.seek_time(ts_ns)[0], log.first_id)
        if segment.is_away and from_id == segment.base_id and segment.index_ts_ns[0] >= ts_ns:
            return from_id  # its first record
        while from_id < min(segment.next_id, log.committed_id):
            run, row, next_id = log.read(from_id, 4096)
            if run is not None:
                times = run.ts_ns[row : row + next_id - from_id]
                at = bisect_left(times, ts_ns)
                if at < len(times):
                    return from_id + at
            from_id = next_id
    return log.committed_id
