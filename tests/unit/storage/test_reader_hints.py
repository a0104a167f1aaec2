"""Positions at which sequential readers stopped."""

from toymq_py.storage.reader_hints import HINTS_BACK, HINTS_MAX, ReaderHints
from toymq_py.storage.segment import Segment


def test_a_reader_goes_on_where_it_stopped_once() -> None:
    segment, hints = Segment("/d/0.log", 0, next_id=100, end=10_000), ReaderHints()
    hints.note(40, segment, 4000)
    assert hints.stopped_at(40)
    assert hints.place_of(segment, 40, whole=True) == (40, 4000)
    assert not hints.stopped_at(40)
    assert hints.place_of(segment, 40, whole=True) == (0, 0), "then the index knows best"


def test_a_reader_may_have_skipped_some_where_all_between_can_be_read() -> None:
    segment, hints = Segment("/d/0.log", 0, next_id=100, end=10_000), ReaderHints()
    hints.note(40, segment, 4000)
    assert hints.place_of(segment, 40 + HINTS_BACK + 1, whole=True) == (0, 0)
    assert hints.place_of(segment, 40 + HINTS_BACK, whole=False) == (0, 0)
    assert hints.place_of(segment, 40 + HINTS_BACK, whole=True) == (40, 4000)


def test_a_place_in_another_segment_is_none_and_a_nearer_entry_of_the_index_is_better() -> None:
    old, segment, hints = Segment("/d/0.log", 0), Segment("/d/0.log", 0, next_id=100, end=100_000), ReaderHints()
    hints.note(40, old, 4000)
    assert hints.place_of(segment, 40, whole=True) == (0, 0)
    segment.add_index_entry(45, 4500, 0, 0)
    hints.note(40, segment, 4000)
    assert hints.place_of(segment, 50, whole=True) == (45, 4500)


def test_they_are_bounded() -> None:
    segment, hints = Segment("/d/0.log", 0, next_id=1000, end=100_000), ReaderHints()
    for n in range(HINTS_MAX + 1):
        hints.note(n, segment, n)
    assert [n for n in range(HINTS_MAX + 1) if hints.stopped_at(n)] == [HINTS_MAX]
