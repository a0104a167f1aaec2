"""`toymqctl top`: what it computes from two looks at a broker, and what its keys show. The feed says what it is told to."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from rich.text import Text
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from toymq_py.errors import ConnectionLost, Forbidden
from toymqctl.lines import Row
from toymqctl.top.figures import TOPIC_COLUMNS, Figures, Line, arranged, letter_lines
from toymqctl.top.poller import Feed
from toymqctl.top.screen import LINES_MAX, Help, Top


def consumer(name: str = "c", **changes: Any) -> dict[str, Any]:
    return {
        "consumer": name, "mode": "exclusive", "has_acked": True, "last_acked": 7, "ready": 0, "inflight": 0, "scheduled": 0,
        "backlog": 0, "oldest_unacked_age_s": 0.0, "sessions": 1, "paused": False, **changes,
    }  # fmt: skip


def topic(name: str, *consumers: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "topic": name, "first_id": 0, "next_id": 100, "messages": 100, "bytes": 4096, "segments": 1, "state": "ok",
        "consumers": list(consumers), **changes,
    }  # fmt: skip


def stats(
    *topics: dict[str, Any], uptime_s: float = 60.0, started_s: float = 1_781_767_740.0, **changes: Any
) -> dict[str, Any]:
    return {
        "version": "1.0", "uptime_s": uptime_s, "time_ms": round((started_s + uptime_s) * 1000),
        "fsync": "always", "connections": 3, "publish_total": 0, "deliver_total": 0,
        "ack_total": 0, "error_total": 0, "fsync_p99_s": 0.0021, "loop_lag_s": 0.0034, "rss_bytes": 50 << 20,
        "disk_free_bytes": 9 << 30, "disk_low": False, "topics": list(topics), **changes,
    }  # fmt: skip


def texts(lines: list[Line], column: int) -> list[str]:
    return [line.cells[column].text for line in lines]


# -- figures


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
        topic("orders.dlq", messages=7, redriven=[[0, 1], [4, 4]]),
        topic("quiet", consumer(oldest_unacked_age_s=0.0), state="degraded"),
    ))  # fmt: skip
    lines = figures.topics()
    assert [cell.text for cell in lines[0].cells[3:8]] == ["9", "1.5m", "0", "0", "4"]
    assert [cell.text for cell in lines[2].cells[3:5]] == ["0", "-"]
    assert [line.key for line in lines if line.cells[-1].bad] == ["quiet"]


def test_a_topic_shows_what_is_scheduled_beside_its_lag() -> None:
    """A message that waits for its time is one, however many consumers wait for it."""
    (line,) = Figures(stats(topic("mails", consumer(scheduled=7), consumer("d", scheduled=6, backlog=1)))).topics()
    shown = {column.name: cell.text for column, cell in zip(TOPIC_COLUMNS, line.cells, strict=True)}
    assert (shown["lag"], shown["scheduled"], shown["dead"]) == ("1", "7", "0")


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


# -- the screen


class ToldFeed(Feed):
    """Says what the test wants, and counts what it is asked."""

    address = "broker:6789"

    def __init__(self, *answers: dict[str, Any] | Exception) -> None:
        self.answers = list(answers)
        self.letters: list[Row] | Exception = []
        self.asked: list[str] = []
        self.lost: str | None = None

    @property
    def trouble(self) -> str | None:
        return self.lost

    async def stats(self) -> dict[str, Any]:
        self.asked.append("stats")
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def newest(self, topic: str, count: int) -> list[Row]:
        self.asked.append(topic)
        if isinstance(self.letters, Exception):
            raise self.letters
        return self.letters


@asynccontextmanager
async def shown(feed: ToldFeed) -> AsyncIterator[tuple[Top, Pilot[None]]]:
    """A screen that asked once."""
    app = Top(feed, every_s=None)
    async with app.run_test(size=(120, 20)) as pilot:
        await app.poll()
        await pilot.pause()
        yield app, pilot


def rows(app: Top) -> list[list[str]]:
    table = app.query_one(DataTable)
    return [[str(cell) for cell in table.get_row_at(row)] for row in range(table.row_count)]


def names(app: Top) -> list[str]:
    return [row[0] for row in rows(app)]


def headings(app: Top) -> list[str]:
    return [str(column.label) for column in app.query_one(DataTable).ordered_columns]


def said(app: Top, widget: str) -> str:
    content = app.query_one(widget, Static).content
    assert isinstance(content, Text)
    return content.plain


BROKER = stats(
    topic("audit", messages=5),
    topic("orders", consumer("billing", backlog=12, inflight=3, oldest_unacked_age_s=30.0), consumer("mail")),
    topic("orders.dlq", messages=2, next_id=2),
)


async def test_down_to_the_letters_and_up_again() -> None:
    feed = ToldFeed(BROKER)
    feed.letters = [Row("orders.dlq", 1, None, 0, b"", {"toymq-reason": "rejected"}, b"poison")]
    async with shown(feed) as (app, pilot):
        assert names(app) == ["audit", "orders", "orders.dlq"]
        assert headings(app)[:3] == ["topic ▲", "pub/s", "ack/s"]
        await pilot.press("down", "enter")
        assert names(app) == ["billing", "mail"]
        assert said(app, "#where").startswith("broker:6789 · orders · consumers")
        await pilot.press("d")
        await pilot.app.workers.wait_for_complete()
        await pilot.pause()
        assert (names(app), rows(app)[0][4], rows(app)[0][7]) == (["1"], "rejected", "poison")
        assert feed.asked == ["stats", "stats", "orders.dlq"]
        await app.poll()
        assert feed.asked == ["stats", "stats", "orders.dlq", "stats"], "there is no newer letter: none is fetched"
        await pilot.press("escape")
        assert names(app) == ["billing", "mail"]
        await pilot.press("escape")
        assert names(app) == ["audit", "orders", "orders.dlq"]
        assert app.query_one(DataTable).cursor_row == 1, "where we came from"
        await pilot.press("escape")
        assert names(app) == ["audit", "orders", "orders.dlq"], "there is nothing above"


async def test_letters_that_may_not_be_read_say_so_and_a_topic_without_any_has_none() -> None:
    feed = ToldFeed(BROKER)
    feed.letters = Forbidden("the token of ops may not subscribe to orders.dlq")
    async with shown(feed) as (app, pilot):
        await pilot.press("down", "d")
        await pilot.app.workers.wait_for_complete()
        assert names(app) == []
        assert "may not subscribe to orders.dlq" in said(app, "#where")
        await pilot.press("escape", "escape", "up", "d")
        await pilot.app.workers.wait_for_complete()
        assert names(app) == []
        assert "may not" not in said(app, "#where")
        assert feed.asked[-1] == "stats", "there is no topic of dead letters to fetch from"


async def test_the_cursor_stays_on_its_line() -> None:
    more = stats(topic("aaa"), *BROKER["topics"], uptime_s=61.0)
    async with shown(ToldFeed(BROKER, more)) as (app, pilot):
        await pilot.press("down")
        await app.poll()
        await pilot.pause()
        assert names(app) == ["aaa", "audit", "orders", "orders.dlq"]
        assert app.query_one(DataTable).cursor_row == 2


async def test_cells_change_in_place() -> None:
    after = stats(*BROKER["topics"][:1], topic("orders", next_id=160, messages=160), BROKER["topics"][2], uptime_s=62.0)
    async with shown(ToldFeed(BROKER, after)) as (app, pilot):
        await app.poll()
        await pilot.pause()
        assert rows(app)[1][:2] == ["orders", "30.0"]
        assert rows(app)[1][8] == "160"


async def test_sort_and_reverse() -> None:
    async with shown(ToldFeed(BROKER)) as (app, pilot):
        await pilot.press("r")
        assert names(app) == ["orders.dlq", "orders", "audit"]
        await pilot.press("s", "s", "s")
        assert headings(app)[3] == "lag ▼"
        assert names(app) == ["orders", "audit", "orders.dlq"]
        await pilot.press("r")
        assert headings(app)[3] == "lag ▲"
        assert names(app) == ["audit", "orders.dlq", "orders"]


async def test_filter() -> None:
    async with shown(ToldFeed(BROKER)) as (app, pilot):
        await pilot.press("slash", *"DLQ")
        assert names(app) == ["orders.dlq"]
        await pilot.press("enter")
        assert "/DLQ" in said(app, "#where"), "the filter holds, and keys are keys again"
        await app.poll()
        assert names(app) == ["orders.dlq"]
        await pilot.press("escape")
        assert len(names(app)) == 3


async def test_pause_holds_the_figures() -> None:
    after = stats(topic("only"), uptime_s=61.0)
    async with shown(ToldFeed(BROKER, after)) as (app, pilot):
        await pilot.press("p")
        assert "PAUSED" in said(app, "#where")
        app._ask()
        await app.poll()
        assert len(names(app)) == 3
        await pilot.press("space")
        await pilot.app.workers.wait_for_complete()
        await pilot.pause()
        assert names(app) == ["only"]
        assert "PAUSED" not in said(app, "#where")


async def test_an_outage_is_said_the_last_figures_stay_and_it_goes_on() -> None:
    feed = ToldFeed(BROKER, ConnectionLost("the broker closed the connection"), stats(topic("back"), started_s=1_781_767_900.0))
    async with shown(feed) as (app, pilot):
        feed.lost = "the broker closed the connection"
        await app.poll()
        assert "no connection, trying again: the broker closed the connection" in said(app, "#where")
        assert len(names(app)) == 3
        feed.lost = None
        await app.poll()
        await pilot.pause()
        assert names(app) == ["back"]
        assert "no connection" not in said(app, "#where")
        assert "pub/s -" in said(app, "#overview"), "another life has no rates yet"


async def test_a_topic_that_goes_while_it_is_looked_at() -> None:
    async with shown(ToldFeed(BROKER, stats(uptime_s=61.0))) as (app, pilot):
        await pilot.press("down", "enter")
        await app.poll()
        await pilot.pause()
        assert names(app) == []
        assert "this topic was deleted" in said(app, "#where")


async def test_many_topics_are_cut_and_found_by_the_filter() -> None:
    many = stats(*(topic(f"t{number:04}") for number in range(LINES_MAX + 7)))
    async with shown(ToldFeed(many)) as (app, pilot):
        assert len(names(app)) == LINES_MAX
        assert f"the first {LINES_MAX} of {LINES_MAX + 7}" in said(app, "#where")
        await pilot.press("slash", *"t0506")
        assert names(app) == ["t0506"]


async def test_help_and_quit() -> None:
    async with shown(ToldFeed(BROKER)) as (app, pilot):
        await pilot.press("question_mark")
        assert isinstance(app.screen, Help)
        await app.poll()
        await pilot.press("x")
        assert not isinstance(app.screen, Help)
        await pilot.press("q")
    assert app.return_code == 0


async def test_a_long_name_leaves_room_for_the_numbers_and_is_found_and_headed_whole() -> None:
    long = "t" * 190 + "-end"
    async with shown(ToldFeed(stats(topic(long, consumer("c" * 196))))) as (app, pilot):
        assert names(app) == ["t" * 39 + "…"], "a third of the screen"
        await pilot.press("slash", *"-end", "enter")
        assert len(names(app)) == 1
        await pilot.press("enter")
        assert names(app) == ["c" * 39 + "…"]
        assert long in said(app, "#where")


async def test_names_are_no_markup() -> None:
    """A consumer's or a topic's name cannot have brackets; a key and a payload can."""
    feed = ToldFeed(BROKER)
    feed.letters = [Row("orders.dlq", 1, None, 0, b"", {"toymq-reason": "[red]"}, b"[/] [bold")]
    async with shown(feed) as (app, pilot):
        await pilot.press("down", "d")
        await pilot.app.workers.wait_for_complete()
        await pilot.pause()
        assert (rows(app)[0][4], rows(app)[0][7]) == ("[red]", "[/] [bold")
