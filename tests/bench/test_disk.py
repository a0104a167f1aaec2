"""Measuring the limit of the disk."""

from pathlib import Path

from toymq_bench import disk


def test_one_outstanding_publish_gets_a_commit_of_its_own() -> None:
    assert [disk.records_per_commit(outstanding) for outstanding in (1, 2, 4096)] == [1, disk.GROUP, disk.GROUP]


def test_the_limit_counts_records_and_leaves_no_file(tmp_path: Path) -> None:
    one = disk.records_per_s(tmp_path, 100, 1, 0.0001)
    assert one > 0
    assert list(tmp_path.iterdir()) == []
