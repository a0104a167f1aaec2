"""The screen of `toymqctl top` and its keys, with data that the test sets."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rich.text import Text
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from tests.support.broker_stats import consumer, stats, topic
from tests.support.told_feed import ToldFeed
from toymq_py.errors import ConnectionLost, Forbidden
from toymqctl.lines import Row
from toymqctl.top.screen import LINES_MAX, Help, Top


@asynccontextmanager
async def shown(feed: ToldFeed) -> AsyncIterator[tuple[Top, Pilot[None]]]:
    """Yield a screen that has loaded its data once."""
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


async def test_a_topic_without_consumers_says_so() -> None:
    """Found: the screen was empty, as if it were loading."""
    async with shown(ToldFeed(BROKER)) as (app, pilot):
        await pilot.press("enter")
        assert said(app, "#where").startswith("broker:6789 · audit · no consumers")


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
        assert headings(app)[3] == "backlog ▼"
        assert names(app) == ["orders", "audit", "orders.dlq"]
        await pilot.press("r")
        assert headings(app)[3] == "backlog ▲"
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
        assert names(app) == ["t" * 20 + "…" + "t" * 15 + "-end"], "a third of the screen"
        await pilot.press("slash", *"-end", "enter")
        assert len(names(app)) == 1
        await pilot.press("enter")
        assert names(app) == ["c" * 20 + "…" + "c" * 19]
        assert long in said(app, "#where")


async def test_names_are_no_markup() -> None:
    """A key or a payload may contain brackets; a consumer's or a topic's name cannot."""
    feed = ToldFeed(BROKER)
    feed.letters = [Row("orders.dlq", 1, None, 0, b"", {"toymq-reason": "[red]"}, b"[/] [bold")]
    async with shown(feed) as (app, pilot):
        await pilot.press("down", "d")
        await pilot.app.workers.wait_for_complete()
        await pilot.pause()
        assert (rows(app)[0][4], rows(app)[0][7]) == ("[red]", "[/] [bold")


async def test_what_the_figures_are_without_is_said_over_those_that_there_are() -> None:
    """Found: while one worker or group did not answer, the screen was empty except for one line."""
    feed = ToldFeed(BROKER, BROKER | {"topics": BROKER["topics"][:1], "away": [{"place": "worker 1", "why": "x"}]}, BROKER)
    async with shown(feed) as (app, _):
        assert "without" not in said(app, "#where")
        await app.poll()
        assert names(app) == ["audit"]
        assert "without worker 1: `toymqctl doctor` says what to do" in said(app, "#where")
        app._go("orders")
        assert "this topic is away, or was deleted" in said(app, "#where")
        await app.poll()
        assert "without" not in said(app, "#where")
