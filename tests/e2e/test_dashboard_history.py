"""The broker's last hour on the page: charts that do not begin empty, and an hour of a topic. In a real Chromium; ADR 0145."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.dashboard import NARROW, WIDE, Visit, dead_letters, publish, row
from tests.support.requirements import require
from toymq_py.clock import SystemClock

pytestmark = [pytest.mark.browser, require("chromium", "playwright")]

POINTS = "(path) => (path.getAttribute('d').match(/[ML]/g) ?? []).length"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "d", "--http", "127.0.0.1:0") as broker:
        publish(broker, "orders", "x")
        yield broker


@pytest.fixture(scope="module")
def began() -> float:
    """Return a time before the broker began, by the clock of the machine."""
    return SystemClock.monotonic()


def test_lines_do_not_begin_empty(began: float, broker: BrokerProcess, visit: Visit) -> None:
    page = visit(broker.http)
    row(page, "orders").wait_for()
    points = row(page, "orders").locator(".spark .line").evaluate(POINTS)
    assert points < 5 + SystemClock.monotonic() - began, "this broker has just begun, and so does the page"

    def kept(route: Any) -> None:
        answer = route.fetch().json()
        answer["broker"] = {name: [5.0] * 10 for name in answer["broker"]}
        answer["topics"] = {"orders": {"published": [7.0] * 10, "acked": [3.0] * 10}}
        route.fulfill(json=answer)

    page.route("**/v1/history?*", kept)
    page.reload()
    page.locator(".trow .spark .line[d*='L70 ']").wait_for(state="attached")
    for line in (row(page, "orders").locator(".spark .line"), page.locator(".tile .spark .line").first):
        assert line.evaluate(POINTS) > 70


def test_the_lines_of_all_groups_do_not_begin_with_the_numbers_of_one(broker: BrokerProcess, visit: Visit) -> None:
    """Found: the charts began with one group's numbers, and jumped to those of all groups once the page was open."""

    def kept(route: Any) -> None:
        answer = route.fetch().json() | {"part": "group a of 2"}
        answer["broker"] = {name: [5.0] * 10 for name in answer["broker"]}
        answer["topics"] = {"orders": {"published": [7.0] * 10, "acked": [3.0] * 10}}
        route.fulfill(json=answer)

    page = visit(f"{broker.http}#/broker")
    page.route("**/v1/history?*", kept)
    page.goto(broker.http)
    page.reload()
    page.locator(".trow .spark .line[d*='L70 ']").wait_for(state="attached")
    assert row(page, "orders").locator(".spark .line").evaluate(POINTS) > 70, "a topic is of one group, here of this one"
    assert page.locator(".tile .spark .line").first.evaluate(POINTS) < 60


def test_an_hour_of_a_topic_by_pointer_and_by_keys(broker: BrokerProcess, visit: Visit) -> None:
    dead_letters(broker, "invoices", "unpaid", "too-large")
    page = visit(f"{broker.http}#/topics/invoices", color_scheme="dark")

    def kept(route: Any) -> None:
        answer = route.fetch().json()
        assert answer["topic"] == "invoices"
        numbers = [None] * 300 + [2.5] * 30 + [None] * 10 + [4.0] * 20
        answer |= {"kept": True, "numbers": dict.fromkeys(("published", "acked", "backlog", "oldest_s", "letters"), numbers)}
        route.fulfill(json=answer)

    page.route("**/v1/topics/*/history?*", kept)
    page.get_by_role("button", name="1 hour").click()
    assert page.get_by_role("button", name="1 hour").get_attribute("aria-pressed") == "true"
    rates = page.get_by_role("slider", name="Rates, the last hour, at a time")
    rates.wait_for()
    line = page.locator(".hours .line").first
    assert (line.evaluate(POINTS), line.get_attribute("d").count("M")) == (50, 2), "what is not known is a gap"
    assert page.locator(".hours figure").count() == 4
    assert rates.get_attribute("aria-valuetext") == "now: Published 4.0 /s, Acked, all consumers 4.0 /s"
    rates.focus()
    page.keyboard.press("Home")
    assert rates.get_attribute("aria-valuetext") == "59 m 50 s ago: Published \u2013 /s, Acked, all consumers \u2013 /s"
    page.keyboard.press("End")
    for _ in range(4):
        page.keyboard.press("PageDown")
    assert rates.get_attribute("aria-valuetext") == "6 m 40 s ago: Published 2.5 /s, Acked, all consumers 2.5 /s"
    assert page.locator(".hours .axis").first.inner_text().split("\n") == ["1 h ago", "6 m 40 s ago", "now"]
    oldest = page.get_by_role("slider", name="Oldest unacked")
    oldest.hover(position={"x": 2, "y": 20})
    assert page.locator(".hours figcaption", has_text="Oldest unacked").inner_text() == "Oldest unacked \u2013"
    page.get_by_role("button", name="90 s").click()
    assert not rates.is_visible()
    page.get_by_role("slider", name="Rates, at a time").wait_for()


def test_an_axis_of_less_than_a_second_has_another_number_at_each_line(broker: BrokerProcess, visit: Visit) -> None:
    """Found: the axis read "1.0 s" at the top and in the middle."""

    def kept(route: Any) -> None:
        answer = route.fetch().json()
        numbers = dict.fromkeys(("published", "acked", "backlog", "oldest_s", "letters"), [0.4] * 360)
        route.fulfill(json=answer | {"kept": True, "numbers": numbers})

    page = visit(f"{broker.http}#/topics/orders")
    page.route("**/v1/topics/*/history?*", kept)
    page.get_by_role("button", name="1 hour").click()
    chart = page.locator(".hours figure").nth(2)
    chart.get_by_text("400 ms").wait_for()
    assert chart.locator(".scale").all_inner_texts() == ["1.0 s", "500 ms"]


@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["wide", "narrow"])
def test_a_real_hour_fits_and_says_what_it_knows(broker: BrokerProcess, visit: Visit, viewport: dict[str, int]) -> None:
    page = visit(f"{broker.http}#/topics/orders", viewport)
    page.get_by_role("button", name="1 hour").click()
    drawn = page.locator(".hours figcaption", has_text=re.compile(r"Backlog \d"))
    page.get_by_text("The broker keeps no history of this topic yet").or_(drawn).first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"]


def test_a_history_that_cannot_be_read_is_said(broker: BrokerProcess, visit: Visit) -> None:
    page = visit(f"{broker.http}#/topics/orders", broken="ERR_|Failed to load")
    page.route("**/history?*", lambda route: route.abort())
    page.get_by_role("button", name="1 hour").click()
    page.get_by_role("status").filter(has_text="The history could not be read. UNREACHABLE").wait_for()
