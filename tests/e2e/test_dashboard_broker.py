"""The broker's page: its hour, room, webhooks, tokens and options. In a real Chromium."""

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.dashboard import NARROW, WIDE, Start, Visit, publish
from tests.support.requirements import require

pytestmark = [pytest.mark.browser, require("chromium", "playwright")]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("broker") / "d"
    with BrokerProcess(directory, "--http", "127.0.0.1:0", "--private-webhooks", "--max-topics", "50") as broker:
        publish(broker, "orders", "x")
        hook = {"topic": "orders", "url": "http://127.0.0.1:9/none", "secret": "a-secret-of-the-hook"}
        httpx.put(f"{broker.http}v1/webhooks/bills", json=hook).raise_for_status()
        alert = {"when": "lag", "topic": "orders", "threshold": 1, "for": "0s", "to": "notices"}
        httpx.put(f"{broker.http}v1/alerts/behind", json=alert).raise_for_status()
        yield broker


def rows(page: Any, label: str) -> list[list[str]]:
    found = page.get_by_role("region", name=label, exact=True).locator("tbody tr")
    found.first.wait_for()
    return [each.locator("th, td").all_inner_texts() for each in found.all()]


def test_options_say_what_holds_and_where_it_comes_from(broker: BrokerProcess, visit: Visit) -> None:
    page = visit(broker.http)
    page.get_by_role("link", name="Broker").click()
    page.get_by_role("heading", name="Broker", exact=True).wait_for()
    set_here = {row[0]: row[1:3] for row in rows(page, "Options")}
    assert set_here["max_topics"] == ["50", "--max-topics"]
    assert "dedupe_keys" not in set_here
    page.get_by_role("button", name="All", exact=True).click()
    page.get_by_role("rowheader", name="dedupe_keys", exact=True).wait_for()
    page.keyboard.press("/")
    page.keyboard.type("max-att")
    page.get_by_role("rowheader", name="dedupe_keys", exact=True).wait_for(state="detached")
    (row,) = rows(page, "Options")
    assert row == ["max_attempts", "20", "default", "Failed attempts after which a message is a dead letter; 0: never."]
    page.keyboard.type("xyz")
    page.get_by_text("No option matches.").wait_for()


def test_room_webhooks_and_the_hour(broker: BrokerProcess, visit: Visit) -> None:
    page = visit(f"{broker.http}#/broker")
    page.get_by_text("2 of 50").wait_for()  # the alert has made the topic of its notices
    assert page.get_by_role("meter").count() == 5
    page.get_by_text("No space is kept free").wait_for()
    page.get_by_text("This broker has no auth file: whatever reaches it may do everything.").wait_for()
    page.get_by_role("region", name="Webhooks").locator(".slow", has_text="fails: ").wait_for()
    page.get_by_role("region", name="Webhooks").locator('[data-label="Waiting"]', has_text="1").wait_for()
    (hook,) = rows(page, "Webhooks")
    assert hook[:5] == ["bills", "orders", "http://127.0.0.1:9/none", "yes", "1"]
    assert "a-secret-of-the-hook" not in page.content()
    page.get_by_role("slider", name="Dead letters, the last hour, at a time").wait_for()
    assert "Published" in page.get_by_role("slider", name="Rates, the last hour").get_attribute("aria-valuetext")


def test_a_webhook_says_how_many_of_its_messages_are_dead_letters(broker: BrokerProcess, visit: Visit) -> None:
    page = visit(broker.http)
    hook = {"name": "bills", "topic": "orders", "url": "http://a/", "secret": None, "failure": "refused", "letters": 3}
    page.route("**/v1/webhooks", lambda route: route.fulfill(json={"webhooks": [hook]}))
    page.goto(f"{broker.http}#/broker")
    page.get_by_role("region", name="Webhooks").get_by_text("fails: refused; 3 dead letters since the start").wait_for()


def test_what_stands_below_the_heading_is_apart_from_the_cards(broker: BrokerProcess, visit: Visit) -> None:
    """Found: the line that names the worker of the page touched the cards."""
    page = visit(broker.http)
    part = "worker 0 of 2"
    page.route("**/v1/broker", lambda route: route.fulfill(json=route.fetch().json() | {"part": part}))
    page.goto(f"{broker.http}#/broker")
    line = page.locator("h1 + .muted", has_text=part)
    line.wait_for()
    gap = "document.querySelector('.overview').getBoundingClientRect().top - "
    assert page.evaluate(f"{gap} document.querySelector('h1 + .muted').getBoundingClientRect().bottom") >= 8


def test_without_webhooks_it_says_how_to_make_one(visit: Visit, start: Start) -> None:
    page = visit(f"{start().http}#/broker")
    webhooks = page.locator("section").filter(has=page.get_by_role("heading", name="Webhooks", exact=True))
    webhooks.get_by_text("toymqctl webhooks set NAME TOPIC URL makes one, or PUT /v1/webhooks/NAME.").wait_for()
    assert page.get_by_role("term").all_inner_texts()[-1] == "The broker's clock"


def test_alerts_say_where_they_fire(broker: BrokerProcess, visit: Visit) -> None:
    httpx.get(f"{broker.http}v1/topics/orders/messages", params={"consumer": "slow", "wait_s": 5}).raise_for_status()
    page = visit(f"{broker.http}#/broker")
    page.get_by_role("region", name="Alerts").locator(".slow", has_text="firing").wait_for()
    (alert,) = rows(page, "Alerts")
    assert alert == ["behind", "lag at least 1 message", "orders", "topic notices", "1 firing: orders"]


def test_tokens_by_name_and_what_a_token_without_admin_sees(visit: Visit, start: Start, tmp_path: Path) -> None:
    auth = tmp_path / "auth.toml"
    rights = {
        "boss": "admin = true", "old.one": "subscribe = ['a.*', 'b']\nexpires = 2020-01-01T00:00:00Z",
        "reader": "subscribe = ['orders']",
    }  # fmt: skip
    digests = {name: sha256(f"{name}-token".encode()).hexdigest() for name in rights}
    auth.write_text("".join(f'[[token]]\nname = "{name}"\nsha256 = "{digests[name]}"\n{rights[name]}\n' for name in rights))
    auth.chmod(0o600)
    broker = start("--auth-file", str(auth))
    page = visit(broker.http, broken="401")
    for name in ("boss", "reader"):
        page.get_by_role("dialog").get_by_label("Token").fill(f"{name}-token")
        page.get_by_role("dialog").get_by_role("button", name="Log in").click()
        page.get_by_role("button", name="Log out").wait_for()
        page.goto(f"{broker.http}#/broker")
        page.get_by_role("heading", name="The last hour").wait_for()
        if name == "boss":
            found = {row[0]: row[1:] for row in rows(page, "Tokens")}
            assert found["boss"] == ["yes", "\u2013", "\u2013", "never"]
            assert found["old.one"] == ["\u2013", "\u2013", "a.*, b", "expired 2020-01-01"]
            assert digests["boss"] not in page.content()
        else:
            assert page.get_by_role("heading", name="Tokens").count() == 0
            assert page.get_by_role("heading", name="Options").count() == 0
        page.get_by_role("button", name="Log out").click()


@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["wide", "narrow"])
def test_it_fits_and_every_column_has_a_name(broker: BrokerProcess, visit: Visit, viewport: dict[str, int]) -> None:
    page = visit(f"{broker.http}#/broker", viewport, color_scheme="dark")
    page.get_by_role("button", name="All", exact=True).click()
    page.get_by_text("segment_bytes").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"]
    nameless = "[...document.querySelectorAll('th')].filter((one) => !one.textContent.trim()).length"
    assert page.evaluate(nameless) == 0
    assert page.locator("main h1").count() == 1


def test_a_broker_that_cannot_be_described_is_said(broker: BrokerProcess, visit: Visit) -> None:
    page = visit(broker.http, broken="ERR_|Failed to load")
    page.route("**/v1/broker", lambda route: route.abort())
    page.goto(f"{broker.http}#/broker")
    page.get_by_role("alert").filter(has_text="The broker could not be described. UNREACHABLE").wait_for()
