"""The verdict of a soak: a leak in each quantity is found, and none in a run that returned to its start."""

from dataclasses import replace

import pytest

from toymq_chaos.leaks import DISK_ALLOWANCE_BYTES, MIB, complaints, table
from toymq_chaos.vitals import Vitals

REST = Vitals(
    t_s=10.0, round_number=0, at_rest=True, rss_bytes=40 * MIB, descriptors=21, tasks=8, threads=17, disk_bytes=MIB,
    ping_p50_s=0.0004, ping_p99_s=0.001, connections=2, topics=3, publish_total=1000,
)  # fmt: skip
WORK = replace(
    REST, t_s=5.0, at_rest=False, rss_bytes=400 * MIB, descriptors=500, tasks=900, threads=12, disk_bytes=900 * MIB,
    ping_p99_s=0.02, connections=300, topics=60,
)  # fmt: skip


def test_what_returned_is_no_complaint_whatever_it_was_at_work() -> None:
    assert complaints([WORK, REST, WORK, replace(REST, t_s=20.0)]) == []


@pytest.mark.parametrize(
    ("held", "complaint"),
    [
        ({"rss_bytes": 57 * MIB}, "RSS 40.0 MiB -> 57.0 MiB (at most 56.0 MiB)"),
        ({"disk_bytes": 4 * MIB}, "disk 1.0 MiB -> 4.0 MiB (at most 3.0 MiB)"),
        ({"descriptors": 22}, "descriptors 21 -> 22"),
        ({"descriptors": 20}, "descriptors 21 -> 20"),
        ({"tasks": 9}, "tasks 8 -> 9"),
        ({"threads": 18}, "threads 17 -> 18"),
    ],
)
def test_a_leak_in_each_quantity_is_found(held: dict[str, int], complaint: str) -> None:
    assert complaints([WORK, REST, WORK, replace(REST, **held)]) == [complaint]  # type: ignore[arg-type]


def test_all_that_did_not_return_is_named() -> None:
    found = complaints([REST, replace(REST, rss_bytes=100 * MIB, tasks=1000)])
    assert [line.split()[0] for line in found] == ["RSS", "tasks"]


def test_up_to_the_allowance_is_no_complaint() -> None:
    assert complaints([REST, replace(REST, rss_bytes=56 * MIB, disk_bytes=MIB + DISK_ALLOWANCE_BYTES)]) == []


def test_the_last_rest_counts_and_none_between() -> None:
    assert complaints([REST, replace(REST, tasks=9), REST]) == []


@pytest.mark.parametrize("samples", [[], [WORK], [WORK, REST, WORK]])
def test_one_rest_is_nothing_to_compare(samples: list[Vitals]) -> None:
    assert complaints(samples) == ["there are fewer than two rests to compare"]


def test_the_table_has_the_first_rest_the_most_and_the_last_rest() -> None:
    lines = {line[:12].strip(): line[12:].split() for line in table([WORK, REST, replace(REST, tasks=7, ping_p99_s=None)])}
    assert lines["tasks"] == ["8", "900", "7"]
    assert lines["RSS"] == ["40.0", "MiB", "400.0", "MiB", "40.0", "MiB"]
    assert lines["PING p99"] == ["1.00", "ms", "20.00", "ms", "-"]
    assert {line[12:].replace(" ", "") for line in table([])[1:]} == {"---"}, "also of nothing"
