"""The consumers of all topics on one page, in a real Chromium."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.dashboard import NARROW, WIDE, Start, Visit, publish, told
from tests.support.requirements import require

pytestmark = [pytest.mark.browser, require("chromium", "playwright")]

HOSTILE = "-".join(("c" * 60, "d" * 60, "e" * 60))
HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "d", "--http", "127.0.0.1:0") as broker:
        for topic in ("orders", "orders", "orders", "mails"):
            publish(broker, topic, "x")
        for topic, consumer in (("orders", "billing"), ("orders", "audit"), ("mails", "smtp"), ("mails", HOSTILE)):
            leased(broker, topic, consumer)
        yield broker


def leased(broker: BrokerProcess, topic: str, consumer: str) -> None:
    assert httpx.get(f"{broker.http}v1/topics/{topic}/messages", params={"consumer": consumer, "wait_s": 5}).status_code == 200


def names(page: Any) -> list[str]:
    return page.locator(".people .rowlink").all_inner_texts()


def cell(page: Any, consumer: str, label: str) -> str:
    row = page.get_by_role("row").filter(has=page.get_by_role("link", name=consumer, exact=True))
    return row.locator(f'[data-label="{label}"]').inner_text()


def test_all_are_listed_sorted_searched_and_lead_to_their_topic(broker: BrokerProcess, visit: Visit) -> None:
    page = visit(broker.http)
    page.get_by_role("link", name="Consumers").click()
    assert page.get_by_role("link", name="Consumers").get_attribute("aria-current") == "page"
    page.get_by_role("status").filter(has_text="4 consumers").wait_for()
    assert sorted(names(page)[:2]) == ["audit", "billing"], "the largest lag comes first"
    assert cell(page, "billing", "Backlog") == "3"
    assert cell(page, "billing", "Attached") == "by requests"
    page.get_by_role("button", name="Consumer", exact=True).click()
    assert names(page) == ["audit", "billing", HOSTILE, "smtp"]
    assert page.get_by_role("columnheader", name="Consumer").get_attribute("aria-sort") == "ascending"
    page.get_by_role("button", name=re.compile("^Consumer")).click()
    assert names(page)[0] == "smtp"
    page.keyboard.press("/")
    page.keyboard.type("MAILS")
    page.get_by_role("status").filter(has_text="2 of 4 consumers").wait_for()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.textContent") == HOSTILE
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="mails", exact=True).wait_for()


def test_slow_detached_and_redelivering(broker: BrokerProcess, visit: Visit) -> None:
    now_ms = httpx.get(f"{broker.http}v1/stats").json()["time_ms"]
    page = visit(broker.http)
    slow = {"slow_since_ms": now_ms - 2 * HOUR_MS, "oldest_unacked_at_ms": now_ms - 3 * HOUR_MS}
    told(
        page, billing=slow | {"inflight": 0}, audit=slow,
        smtp={"attempts_max": 7, "attempts_max_id": 0, "redelivered_total": 31, "paused": True},
    )  # fmt: skip
    page.goto(f"{broker.http}#/consumers/slow")
    page.reload()
    page.get_by_role("button", name="Slow 2").wait_for()
    assert sorted(names(page)) == ["audit", "billing"]
    assert cell(page, "audit", "Slow since") == "2 h ago"
    assert re.match(r"3 h", cell(page, "audit", "Oldest unacked"))
    page.get_by_role("button", name="Nothing attached 1").click()
    assert names(page) == ["billing"]
    assert cell(page, "billing", "Attached") == "nothing"
    page.get_by_role("button", name="Redelivering 1").click()
    assert (cell(page, "smtp", "Most attempts"), cell(page, "smtp", "Redelivered")) == ("7", "31")
    assert page.locator('[data-label="Most attempts"]').get_attribute("title") == "Message 0"
    assert page.locator(".people .badge").inner_text() == "paused"


def test_keys_that_wait_are_not_called_slow(broker: BrokerProcess, visit: Visit) -> None:
    """Found: for consumers that wait for keys the overview said that more workers do not help, and linked to the slow
    consumers."""
    now_ms = httpx.get(f"{broker.http}v1/stats").json()["time_ms"]
    page = visit(broker.http)
    slow = {"slow_since_ms": now_ms - 2 * HOUR_MS, "oldest_unacked_at_ms": now_ms - 3 * HOUR_MS}
    stuck = slow | {"mode": "keyed", "ready": 2, "inflight": 1, "retrying": 1, "attempts_max": 4, "attempts_max_id": 0}
    told(page, audit=slow, billing=stuck, smtp=stuck | {"backlog": 3}, **{HOSTILE: stuck | {"backlog": 3}})
    page.goto(f"{broker.http}#/")
    page.reload()
    page.get_by_role("listitem").filter(has_text="keys wait").get_by_role("link", name="Show them:").click()
    page.get_by_role("button", name="Keys wait 3").wait_for()
    assert sorted(names(page)) == ["billing", HOSTILE, "smtp"]
    assert page.locator(".people .badge").locator("visible=true").all_inner_texts() == ["keys wait"] * 3
    page.get_by_role("button", name="Slow 1").click()
    assert names(page) == ["audit"]


def test_without_any_it_says_so(visit: Visit, start: Start) -> None:
    page = visit(f"{start().http}#/consumers/slow")
    page.get_by_text("No consumer has left a message unacked for more than a minute.").wait_for()
    page.get_by_role("button", name="All", exact=True).click()
    page.get_by_text("There are no consumers.").wait_for()


@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["wide", "narrow"])
def test_long_names_and_every_number_fit(broker: BrokerProcess, visit: Visit, viewport: dict[str, int]) -> None:
    page = visit(f"{broker.http}#/consumers", viewport, color_scheme="dark")
    page.locator(".people .trow").nth(3).wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"]
    outside = """[...document.querySelectorAll('.people .trow')].flatMap((row) => [...row.querySelectorAll('.number, .named')]
      .filter((one) => one.getClientRects().length).filter((one) => {
        const a = one.getBoundingClientRect(), b = row.getBoundingClientRect();
        const cut = one.scrollWidth > one.clientWidth + 1 && !one.querySelector('bdi');
        return a.right > b.right + 1 || a.bottom > b.bottom + 1 || cut;
      }).map((one) => one.textContent))"""
    assert page.evaluate(outside) == []
    nameless = "[...document.querySelectorAll('[role=columnheader]')].filter((one) => !one.textContent.trim()).length"
    assert page.evaluate(nameless) == 0
    assert page.locator("main h1").inner_text() == "Consumers"


@pytest.mark.parametrize(("place", "shown"), [("topics/orders", "billing"), ("connections", "HTTP")])
def test_a_table_that_fits_does_not_scroll(visit: Visit, start: Start, place: str, shown: str) -> None:
    """Found: each table had a scroll bar of one pixel, because of a word for screen readers."""
    broker = start()
    publish(broker, "orders", "x")
    path = f"{broker.http}v1/topics/orders/messages"
    assert httpx.get(path, params={"consumer": "billing", "wait_s": 5}).status_code == 200
    page = visit(f"{broker.http}#/{place}")
    table = page.locator(".scroller").filter(has_text=shown).first
    table.locator("tbody tr").first.wait_for()
    for width in (1100, 1300, 1400):
        page.set_viewport_size({"width": width, "height": 800})
        assert table.evaluate("(one) => one.scrollWidth - one.clientWidth") == 0, width


@pytest.mark.parametrize("place", ["topics", "consumers"])
def test_heads_of_columns_are_beside_each_other_at_every_width(broker: BrokerProcess, visit: Visit, place: str) -> None:
    """Found: on a tablet the heading "Oldest unacked" overlapped the next one."""
    page = visit(f"{broker.http}#/{'' if place == 'topics' else place}")
    page.locator(".trow").nth(0).wait_for()
    overlaps = """[...document.querySelectorAll('.thead [role=columnheader]')].filter((one) => one.getClientRects().length)
      .map((one) => [one.textContent, document.createRange(), one])
      .map(([name, text, one]) => { text.selectNodeContents(one); return [name, text.getBoundingClientRect()]; })
      .flatMap(([name, box], i, all) => i && all[i - 1][1].right > box.left + 0.5 ? [all[i - 1][0], name] : [])"""
    for width in (641, 700, 768, 820, 1000, 1001, 1100, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        for head in page.locator(".thead button").filter(visible=True).all():
            head.click()  # the arrow of the order takes room
            assert page.evaluate(overlaps) == [], (width, head.inner_text())


def test_five_hundred_consumers_are_few_rows(visit: Visit, start: Start) -> None:
    broker = start()
    with httpx.Client() as client:
        for i in range(25):
            client.put(f"{broker.http}v1/topics/t-{i}")
            for c in range(20):
                client.put(f"{broker.http}v1/topics/t-{i}/consumers/c-{c}", json={"seek": "latest"})
    page = visit(f"{broker.http}#/consumers")
    page.get_by_role("status").filter(has_text="500 consumers").wait_for()
    assert page.locator(".people .trow").count() < 60
    page.keyboard.press("ArrowDown")
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement.closest('.trow').ariaRowIndex") == "501"


def test_nothing_that_waits_has_no_age(visit: Visit, start: Start) -> None:
    """Found by a trial: the list of topics had an oldest message of 0 s where the consumers have a dash."""
    broker = start()
    msg_id = publish(broker, "orders", "x")
    leased(broker, "orders", "billing")
    path = f"{broker.http}v1/topics/orders/messages/{msg_id}"
    httpx.delete(path, params={"consumer": "billing"}).raise_for_status()
    page = visit(broker.http)
    topic = page.get_by_role("row").filter(has=page.get_by_role("link", name="orders", exact=True))
    topic.wait_for()
    assert topic.locator(".c-backlog").inner_text() == "0"
    assert topic.locator(".c-lag").inner_text() == "\N{EN DASH}"
    page.get_by_role("link", name="Consumers").click()
    assert cell(page, "billing", "Oldest unacked") == "\N{EN DASH}"
