"""docs/scale.md: each plan follows from the page's table of figures, all measured with one build."""

import re
import statistics
from math import ceil

import pytest

from tests.support.broker_process import ROOT
from toymq_py.placement import BOUND, worker_of

PAGE = (ROOT / "docs" / "scale.md").read_text()
MIB = 1 << 20
SEGMENT_BYTES = 64 * MIB
RESYNC_BYTES_S = 48 * MIB
DAY_S = 86_400
SHARE = 2 / 3
"""What a plan takes of a core."""


def figure(label: str) -> float:
    """Return the first number of a row of the table."""
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| {label}")]
    number = re.search(r"[\d,.]*\d", row.split("|")[2])
    assert number is not None, row
    return float(number[0].replace(",", ""))


PUBLISH_US = figure("a publish of 1 KiB")
CONSUME_US = figure("a message of 1 KiB delivered and acked")
COMMIT_US = figure("of 1 KiB to each of 3,000 topics")
PASSED_US = figure("passed on to another worker")
COPY = figure("with a copy, what the leader does")
FULLEST_OF_12, FULLEST_OF_8 = 1.5, 1.4
PUT = figure("a put, a TB and month")


def section(title: str) -> str:
    (found,) = [text for text in re.split(r"^## ", PAGE, flags=re.MULTILINE) if text.startswith(title + "\n")]
    return found


def test_the_table_has_one_build_and_the_figures_of_the_other_pages() -> None:
    table = section("Figures that the plans use")
    assert "Every CPU figure is of the broker **from source**" in table
    rows = [line for line in table.splitlines() if line.startswith("|")]
    assert [row for row in rows if re.search("compiled|as source", row)] == [], "the others seem to have another build"
    costs = (ROOT / "docs" / "clusters.md").read_text()
    assert f"({COPY} times)" in costs
    assert "(1.20 times)" in costs
    assert f"| the fullest group, by load | {BOUND} means |" in table
    assert f"| the fullest of 12 workers, of 8, with 128 partitions | {FULLEST_OF_12} and {FULLEST_OF_8} means |" in table


@pytest.mark.parametrize(("workers", "partitions", "means"), [(12, 128, FULLEST_OF_12), (8, 128, FULLEST_OF_8)])
def test_the_fullest_worker_has_so_many_means(workers: int, partitions: int, means: float) -> None:
    shares = []
    for name in range(100):
        places = [worker_of(f"t{name}#{n}", workers) for n in range(partitions)]
        shares.append(max(map(places.count, range(workers))) * workers / partitions)
    assert statistics.mean(shares) == pytest.approx(means, abs=0.06)


def test_ten_thousand_topics() -> None:
    text = section("10,000 topics of 1 KB/s")
    cores = 2 * 10_000 * COMMIT_US / 1e6
    workers = ceil(cores / SHARE)
    assert f"{10_000 * COMMIT_US / 1e6:.1f} of them" in text
    assert f"{cores:.1f} in all. `--workers {workers}`, each {cores / workers:.1f} of a core" in text
    assert f"a segment in {SEGMENT_BYTES / 1000 / 3600:.0f} hours" in text
    assert f"({PUBLISH_US} µs for {COMMIT_US:.0f})" in text


def test_one_topic_of_500_mb_a_second() -> None:
    text = section("One topic of 500 MB/s")
    published, consumed = 500_000 * PUBLISH_US / 1e6, 500_000 * CONSUME_US / 1e6
    cores = published + consumed
    routed, passed = published / 2, 500_000 * PASSED_US / 1e6 * 11 / 12
    assert f"are {published:.1f}; delivered once and acked at {CONSUME_US:.0f} µs, {consumed:.1f} more" in text
    assert f"half as much again, {routed:.1f}, and what is passed on to another of 12 workers {passed:.1f}:" in text
    assert f"{cores + routed + passed:.1f} in place of {cores:.1f}" in text
    of_12, of_8 = FULLEST_OF_12 * cores / 12, FULLEST_OF_8 * cores / 8
    assert of_12 < SHARE < of_8
    assert f"are {of_12:.2f} of a core for the fullest; over 8 it is {of_8:.2f}," in text

    def of_a_leader(groups: int) -> float:
        return ceil(128 / groups) / 128 * cores * COPY

    fewest = next(groups for groups in range(1, 129) if of_a_leader(groups) <= SHARE)
    assert f"{cores:.1f} cores become {cores * COPY:.1f}." in text
    assert f"Of 8 groups each leader has 16 partitions, {of_a_leader(8):.2f}" in text
    most = ceil(128 / fewest)
    assert f"{fewest} groups, with {most} partitions at most, are the fewest with {of_a_leader(fewest):.2f}" in text
    assert f"16 have 8 each, {of_a_leader(16):.2f}." in text
    assert set(re.findall(r"(\d+) groups", text)) == {"8", str(fewest), "16"}
    assert f"each of 12 workers has one of its own, {500 / 12:.0f} MB/s," in text
    assert f"each leader of 16 groups, {500 / 16:.0f} MB/s" in text
    week = 500e6 * DAY_S * 7
    assert f"19 TB, takes {round(week / 16e12) * 1e12 / RESYNC_BYTES_S / DAY_S:.1f} days" in text
    assert f"{500e6 / SEGMENT_BYTES:.1f} segments or 15 puts a second, {15 * DAY_S * PUT:.1f}0 $ a day" in text


def test_a_million_connections() -> None:
    text = section("1,000,000 connections")
    assert set(re.findall(r"`--max-connections (\d+)`", text)) == {"100000"}
    assert f"`--workers 16`, {1_000_000 // 16:,} each" in text
    assert f"{1_000_000 / 80_000} s" in text
    assert f"makes it {1_000_000 / 16 * 1.2e-3:.0f} s" in text


def test_ten_terabytes_a_day() -> None:
    text = section("10 TB a day")
    peak = 350_000 * (PUBLISH_US + CONSUME_US) / 1e6
    assert f"{peak / 3:.1f} on average, {peak:.1f} at the peak" in text
    assert f"{FULLEST_OF_8 * peak / 8:.2f} of a core for the fullest" in text
    for_the_load = ceil(peak * COPY * BOUND / SHARE)
    assert f"{peak:.1f} becomes {peak * COPY:.1f}, and the fullest" in text
    for_the_copy = ceil(70 * BOUND / 4)
    assert f"{for_the_load} groups, a group's leader being one core" in text
    assert f"4 TB at the default, {4e12 / RESYNC_BYTES_S / 3600:.0f} hours" in text
    assert set(re.findall(r"(\d+) groups", text)) == {str(for_the_copy)} | {str(for_the_load)}
    assert f"it would be {for_the_load}." in text
    assert f"the 4 TB of the fullest of {for_the_copy} groups in {4e12 / (4 * MIB) / DAY_S:.0f}" in text
    assert f"{10e12 / SEGMENT_BYTES:,.0f}"[:3] + ",000 segments" in text
