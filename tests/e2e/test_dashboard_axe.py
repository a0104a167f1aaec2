"""Every view and dialog of the dashboard, checked by axe-core in a real Chromium: light and dark, wide and on a telephone."""

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pika
import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.dashboard import NARROW, WIDE, Start, Visit, dead_letters, publish, told
from tests.support.requirements import require
from tests.support.shares import one_in

pytestmark = [pytest.mark.browser, require("chromium", "playwright", "axe")]

OF_COLOURS = ["color-contrast", "link-in-text-block"]
"""The rules whose answer depends on the theme."""

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("broker") / "d"
    with BrokerProcess(directory, "--http", "127.0.0.1:0", "--private-webhooks", "--max-topics", "50") as broker:
        for topic, consumer in (("orders", "billing"), ("mails", "smtp")):
            for n in range(3):
                publish(broker, topic, f'{{"order": {n}}}', **{"idempotency-key": f"order-{n}", "x-header-kind": "new"})
            leased = httpx.get(f"{broker.http}v1/topics/{topic}/messages", params={"consumer": consumer, "wait_s": 5})
            assert leased.status_code == 200
        settings = {"visibility": 60_000, "max_attempts": 3}
        httpx.patch(f"{broker.http}v1/topics/orders", json=settings).raise_for_status()
        dead_letters(broker, "invoices", "unpaid", "too-large")
        hook = {"topic": "orders", "url": "http://127.0.0.1:9/none"}
        httpx.put(f"{broker.http}v1/webhooks/bills", json=hook).raise_for_status()
        alert = {"when": "letters", "topic": ">", "for": "0s", "to": "alerts"}
        httpx.put(f"{broker.http}v1/alerts/dead", json=alert).raise_for_status()
        yield broker


def faults(page: Any, only: list[str] | None = None) -> list[str]:
    from axe_playwright_python.base import AXE_SCRIPT  # only there with its extra

    if page.evaluate("typeof axe") == "undefined":  # once in a document: half a megabyte of source
        page.evaluate(AXE_SCRIPT)
    options = {"resultTypes": ["violations"]} | ({"runOnly": {"type": "rule", "values": only}} if only else {})
    found = page.evaluate("options => axe.run(options).then(({ violations }) => violations)", options)
    return [f"{fault['id']}: {fault['help']}: {node['html'][:300]}" for fault in found for node in fault["nodes"]]


LOOKS = [("wide", WIDE, "light"), ("wide", WIDE, "dark"), ("narrow", NARROW, "light"), ("narrow", NARROW, "dark")]


def looked_at(page: Any, what: str, share: int) -> list[str]:
    """Return axe-core's violations on the current page. A share leaves out dark telephones: dark colours are tried on a desk,
    and what only a telephone shows in the light."""
    found = []
    for name, viewport, scheme in LOOKS if share == 1 else LOOKS[:3]:
        page.set_viewport_size(viewport)
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        only = None if scheme == "light" else OF_COLOURS
        found += [f"{what}, {name}, {scheme}: {fault}" for fault in faults(page, only)]
    page.set_viewport_size(WIDE)
    return found


def wrong(broker: BrokerProcess) -> dict[str, Any]:
    """Return answers with trouble of each kind, and banners."""
    now_ms = httpx.get(f"{broker.http}v1/stats").json()["time_ms"]
    slow = {"slow_since_ms": now_ms - HOUR_MS, "oldest_unacked_at_ms": now_ms - 2 * HOUR_MS, "backlog": 7}
    return {
        "billing": slow | {"inflight": 0}, "smtp": slow | {"paused": True, "attempts_max": 9, "attempts_max_id": 0},
        "mails": {"state": "failed", "problem": "EIO"}, "invoices": {"state": "degraded", "lost": 3},
        "stats": {"disk_low": True, "disk_free_bytes": 1000},
    }  # fmt: skip


VIEWS = {
    "": ".trow", "topics/orders": ".consumers tbody tr", "topics/orders/messages": ".entry",
    "topics/invoices/dead-letters": ".entry", "topics/invoices.dlq": ".facts", "topics/nothing": ".empty",
    "consumers": ".trow", "connections": ".listing td", "broker": "meter",
}  # fmt: skip


@one_in(2)
@pytest.mark.parametrize("place", VIEWS)
def test_a_view_in_order_and_in_trouble(broker: BrokerProcess, visit: Visit, place: str, share: int) -> None:
    """Found by axe-core: on a telephone, a list far below the trouble got errors instead of rows."""
    page = visit(f"{broker.http}#/{place}")
    found = []
    for state in ("in order", "in trouble"):
        page.locator(f"main {VIEWS[place]}").locator("visible=true").first.wait_for()
        if state == "in trouble":
            page.locator(".banner").first.wait_for()
        found += looked_at(page, state, share)
        told(page, **wrong(broker))
        page.reload()
    assert found == [], "\n".join(found)


@one_in(2)
def test_what_is_opened_in_a_view(broker: BrokerProcess, visit: Visit, share: int) -> None:
    found = []

    def look(place: str, *presses: str) -> Any:
        page.goto(f"{broker.http}#/{place}")
        page.locator(f"main {VIEWS[place]}").locator("visible=true").first.wait_for()
        for press in presses:
            page.locator(f"main {press}").first.click()
        return page

    page = visit(broker.http)
    look("topics/orders/messages", ".entry").locator(".states li").first.wait_for()
    page.get_by_role("button", name="Search").click()
    page.get_by_role("search").get_by_label("Text").fill("order")
    page.keyboard.press("Enter")
    page.get_by_text("3 messages found").wait_for()
    found += looked_at(page, "a search and an open message", share)
    look("topics/invoices/dead-letters", ".entry").get_by_role("button", name="Group by reason").click()
    page.get_by_label("Dead letters by reason").locator("li").first.wait_for()
    page.get_by_label("Choose dead letter 1").check()
    found += looked_at(page, "groups and an open letter", share)
    look("topics/orders").get_by_role("button", name="1 hour").click()
    page.get_by_role("slider", name="Dead letters, the last hour, at a time").wait_for()
    found += looked_at(page, "an hour", share)
    look("broker").get_by_role("button", name="All", exact=True).click()
    page.get_by_text("segment_bytes").wait_for()
    found += looked_at(page, "all options", share)
    look("").get_by_role("searchbox").fill("none of them")
    page.get_by_text("No topic matches").wait_for()
    found += looked_at(page, "a search without a result", share)
    assert found == [], "\n".join(found)


@one_in(2)
def test_dialogs_and_toasts(broker: BrokerProcess, visit: Visit, share: int) -> None:
    found = []
    page = visit(f"{broker.http}#/topics/orders")
    page.locator(".consumers tbody tr").first.wait_for()
    for name in ("Publish", "Settings", "Purge", "Delete", "Move billing", "Forget billing", "Keyboard help"):
        page.get_by_role("button", name=name, exact=True).click()
        if name == "Publish":
            page.get_by_role("button", name="Add a header").click()
            page.get_by_label("Delay").fill("soon")
            page.get_by_role("dialog").get_by_role("button", name="Publish").click()
            page.get_by_role("dialog").get_by_role("alert").wait_for()
        found += looked_at(page, f"the dialog {name}", share)
        page.keyboard.press("Escape")
        page.get_by_role("dialog").wait_for(state="detached")
    page.goto(broker.http)
    page.get_by_role("button", name="New topic").click()
    page.get_by_role("dialog").get_by_text("Settings").click()
    found += looked_at(page, "a new topic", share)
    page.keyboard.press("Escape")
    page.evaluate(
        """() => import("/static/dialogs.js").then(({ toast }) => { toast("It is done."); toast("It is not.", "bad"); })"""
    )
    page.locator(".toast").nth(1).wait_for()
    found += looked_at(page, "toasts", share)
    assert found == [], "\n".join(found)


@one_in(2)
def test_what_amqp_clients_declared(visit: Visit, start: Start, share: int) -> None:
    broker = start("--amqp", "127.0.0.1:0")
    with pika.BlockingConnection(pika.URLParameters(str(broker.amqp))) as connection:
        channel = connection.channel()
        channel.exchange_declare("orders", "topic", durable=True)
        channel.queue_declare("mails", durable=True, arguments={"x-message-ttl": 60_000})
        channel.queue_bind("mails", "orders", "mail.#")
        page = visit(f"{broker.http}#/amqp")
        found = []
        for name in ("exchanges", "bindings", "queues", "connections"):
            page.goto(f"{broker.http}#/amqp/{name}")
            page.locator("main tbody tr").first.wait_for()
            found += looked_at(page, name, share)
    assert found == [], "\n".join(found)


@one_in(2)
def test_an_empty_broker_and_the_login(visit: Visit, start: Start, tmp_path: Path, share: int) -> None:
    auth = tmp_path / "auth.toml"
    digest = sha256(b"all-token").hexdigest()
    auth.write_text(f'[[token]]\nname = "all"\nsha256 = "{digest}"\nadmin = true\npublish = [">"]\nsubscribe = [">"]\n')
    auth.chmod(0o600)
    broker = start("--auth-file", str(auth))
    page = visit(broker.http, broken="401")
    page.get_by_role("dialog").get_by_label("Token").fill("all-token")
    found = looked_at(page, "the login", share)
    page.get_by_role("dialog").get_by_role("button", name="Log in").click()
    page.get_by_role("heading", name="Nothing here yet").wait_for()
    found += looked_at(page, "an empty broker", share)
    page.goto(f"{broker.http}#/broker")
    page.get_by_role("rowheader", name="all", exact=True).wait_for()
    found += looked_at(page, "tokens, no webhooks, no alerts", share)
    page.goto(f"{broker.http}#/consumers")
    page.get_by_text("There are no consumers.").wait_for()
    found += looked_at(page, "no consumers", share)
    assert found == [], "\n".join(found)


def test_axe_finds_what_is_wrong(broker: BrokerProcess, visit: Visit) -> None:
    page = visit(broker.http)
    page.locator(".trow").first.wait_for()
    page.evaluate("document.getElementById('main').append(document.createElement('button'))")
    assert any(fault.startswith("button-name") for fault in faults(page))
    page.evaluate(
        "document.querySelector('.brand span').className = 'zero'; document.querySelector('.brand span').style.color = '#ddd'"
    )
    assert any(fault.startswith("color-contrast") for fault in faults(page, OF_COLOURS))
