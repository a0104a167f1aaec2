"""What `toymqctl top` computes from two samples of a broker."""

from typing import Any

import pytest

from tests.support.broker_stats import consumer, stats, topic
from toymqctl.lines import Row
from toymqctl.top.figures import TOPIC_COLUMNS, Figures, Line, arranged, letter_lines


def texts(lines: list[Line], column: int) -> list[str]:
    return [line.cells[column].text for line in lines]


def test_rates_are_differences_by_the_brokers_own_time() -> None:
    before = stats(topic("orders", consumer(backlog=40), consumer("d", backlog=100)), publish_total=1000)
    later = topic("orders", consumer(backlog=20), consumer("d", backlog=140), next_id=140)
    now = stats(later, publish_total=1040, uptime_s=64.0)
    figures = Figures(now, before)
    assert figures.total_rate("publish_total") == 10
    (line,) = figures.topics()
    assert [cell.text for cell in line.cells[:4]] == ["orders", "10.0", "15.0", "140"]
    assert texts(figures.consumers("orders"), 1) == ["15.0", "0"], "40 came and 20 of the backlog went: 60 acks in 4 s"


@pytest.mark.parametrize("before", [
    None,
    stats(topic("orders", consumer()), started_s=1_781_758_000.0, uptime_s=9000.0, publish_total=5),
    stats(topic("orders", consumer()), started_s=1_781_767_730.0, uptime_s=0.4),  # the next life is older already
])  # fmt: skip
def test_without_a_look_at_the_same_life_there_is_no_rate(before: dict[str, Any] | None) -> None:
    figures = Figures(stats(topic("orders", consumer())), before)
    assert figures.total_rate("publish_total") is None
    assert texts(figures.topics(), 1) == texts(figures.topics(), 2) == ["-"]


def test_a_new_topic_and_a_new_consumer_have_no_rate_yet_and_a_purge_is_none() -> None:
    before = stats(topic("a", consumer(backlog=90)))
    figures = Figures(stats(topic("a", consumer(backlog=95), consumer("new")), topic("new"), uptime_s=61.0), before)
    assert texts(figures.consumers("a"), 1) == ["0", "-"]
    assert texts(figures.topics(), 1) == ["0", "-"]


def test_lag_is_that_of_the_slowest_and_letters_that_went_back_do_not_count() -> None:
    figures = Figures(stats(
        topic("orders", consumer(backlog=3, oldest_unacked_age_s=90.0), consumer("d", backlog=9, oldest_unacked_age_s=5.0)),
        topic("orders.dlq", messages=7, letters=4, redriven=[[0, 4]]),
        topic("quiet", consumer(oldest_unacked_age_s=0.0), state="degraded"),
    ))  # fmt: skip
    lines = figures.topics()
    assert [cell.text for cell in lines[0].cells[3:8]] == ["9", "1.5m", "0", "0", "4"]
    assert [cell.text for cell in lines[2].cells[3:5]] == ["0", "-"]
    assert [line.key for line in lines if line.cells[-1].bad] == ["quiet"]


def test_a_topic_shows_what_is_scheduled_beside_its_backlog() -> None:
    """A delayed message counts once, however many consumers wait for it."""
    (line,) = Figures(stats(topic("mails", consumer(scheduled=7), consumer("d", scheduled=6, backlog=1)))).topics()
    shown = {column.name: cell.text for column, cell in zip(TOPIC_COLUMNS, line.cells, strict=True)}
    assert (shown["backlog"], shown["scheduled"], shown["letters"]) == ("1", "7", "0")


def test_a_topic_without_a_consumer_shows_what_waits_in_it() -> None:
    """Found: `toymqctl topics` showed 3, and `top` showed 0."""
    (line,) = Figures(stats(topic("orders", backlog=3, scheduled=2))).topics()
    shown = {column.name: cell.text for column, cell in zip(TOPIC_COLUMNS, line.cells, strict=True)}
    assert (shown["backlog"], shown["scheduled"]) == ("3", "2")


def test_the_overview_says_what_is_wrong() -> None:
    sound = [cell for line in Figures(stats(topic("a"))).overview() for cell in line]
    assert not any(cell.bad for cell in sound)
    assert {"fsync p99 2.1 ms (always)", "loop lag 3.4 ms", "disk free 9.0GiB"} <= {cell.text for cell in sound}
    now = stats(topic("a", state="failed"), disk_low=True, error_total=5, uptime_s=61.0)
    bad = [cell.text for line in Figures(now, stats()).overview() for cell in line if cell.bad]
    assert bad == ["errors/s 5.0", "1 not ok", "DISK LOW: publishing is refused"]


def test_a_letter_shows_its_story_and_moves_no_cursor() -> None:
    headers = {"toymq-consumer": "billing", "toymq-attempts": "20", "toymq-reason": "attempts"}
    payload = b"\x1b[31m" + b"x" * 500
    (line,) = letter_lines([Row("orders.dlq", 4, None, 1_781_767_800_000_000_000, b"k\x1b[2J", headers, payload)])
    assert [cell.text for cell in line.cells[:7]] == [
        "4", "2026-06-18 07:30:00Z", "billing", "20", "attempts", "k·[2J", "505B"
    ]  # fmt: skip
    assert line.cells[7].text == "·[31m" + "x" * 55


def test_lines_are_filtered_and_sorted() -> None:
    lines = Figures(stats(topic("b", messages=5), topic("A", messages=50), topic("c", messages=5, state="degraded"))).topics()
    assert [line.key for line in arranged(lines, "", 7, reverse=True)] == ["A", "b", "c"]
    assert [line.key for line in arranged(lines, "a", 0, reverse=False)] == ["A", "c"], "the name, or the state"
    assert [line.key for line in arranged(lines, "DEGR", 0, reverse=False)] == ["c"]


def test_totals_of_fewer_workers_are_not_compared_with_those_of_all() -> None:
    """Found: when a worker came back, all that it had ever published counted for one second."""
    away = {"away": [{"place": "worker 1", "why": "x"}]}
    before, now = stats(uptime_s=9.0, publish_total=5), stats(uptime_s=10.0, publish_total=1_000_000)
    assert Figures(now, before).total_rate("publish_total") == pytest.approx(999_995)
    assert Figures(now, before | away).total_rate("publish_total") is None
    assert Figures(now | away, before | away).total_rate("publish_total") is not None
