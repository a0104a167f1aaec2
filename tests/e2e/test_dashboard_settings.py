"""The settings in force of a topic, on its page, in a real Chromium."""

from typing import Any

import httpx
import pytest

from tests.support.dashboard import NARROW, WIDE, Start, Visit, dead_letters, publish, toast
from tests.support.requirements import require

pytestmark = [pytest.mark.browser, require("chromium", "playwright")]


def settings(page: Any) -> dict[str, str]:
    listed = page.locator("dl.settings")
    listed.locator("dt").nth(11).wait_for()
    names, values = (listed.locator(tag).all_inner_texts() for tag in ("dt", "dd"))
    return dict(zip(names, values, strict=True))


def test_each_value_says_where_it_is_from(visit: Visit, start: Start) -> None:
    broker = start("--max-attempts", "3")
    httpx.put(f"{broker.http}v1/topics/orders", json={"visibility": 90_000, "retain_max_bytes": 1 << 30}).raise_for_status()
    page = visit(f"{broker.http}#/topics/orders")
    found = settings(page)
    assert list(found)[:2] == ["visibility", "retain_max_bytes"], "its own come first"
    assert found["visibility"] == "90s set here"
    assert found["retain_max_bytes"] == "1GiB set here"
    assert found["max_attempts"] == "3 option max_attempts of the broker"
    assert found["nack_backoff_max"] == "30s default"
    assert found["ttl"] == "no limit default"
    assert found["when_full"] == "reject default"
    page.get_by_role("button", name="Settings", exact=True).click()
    dialog = page.get_by_role("dialog")
    assert dialog.get_by_label("Visibility timeout").get_attribute("placeholder") == "default: 30s"
    assert dialog.get_by_label("Attempts").get_attribute("placeholder") == "default: 3"
    assert dialog.get_by_label("When the backlog is full").locator("option").first.inner_text() == "default: reject"
    dialog.get_by_label("Visibility timeout").fill("")
    dialog.get_by_label("Attempts").fill("0")
    dialog.get_by_role("button", name="Save settings").click()
    toast(page, "orders has its new settings.")
    page.get_by_role("definition").filter(has_text="for ever set here").wait_for()
    assert settings(page)["visibility"] == "30s default"
    dead_letters(broker, "invoices", "unpaid")
    page.goto(f"{broker.http}#/topics/invoices.dlq")
    page.get_by_role("definition").filter(has_text="for ever of dead letters").wait_for()


def test_settings_that_cannot_be_read_come_when_they_can_be(visit: Visit, start: Start) -> None:
    broker = start()
    publish(broker, "orders", "x")
    page = visit(broker.http, broken="ERR_|Failed to load")
    page.route("**/settings", lambda route: route.abort())
    page.goto(f"{broker.http}#/topics/orders")
    page.get_by_text("The settings could not be read. UNREACHABLE").wait_for()
    page.get_by_role("button", name="Settings", exact=True).click()
    assert page.get_by_role("dialog").get_by_label("Visibility timeout").get_attribute("placeholder") == "default"
    page.keyboard.press("Escape")
    page.unroute("**/settings")
    publish(broker, "orders", "the broker speaks")
    assert settings(page)["visibility"] == "30s default"


@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["wide", "narrow"])
def test_it_fits(visit: Visit, start: Start, viewport: dict[str, int]) -> None:
    broker = start("--max-attempts", "3")
    publish(broker, "orders", "x")
    page = visit(f"{broker.http}#/topics/orders", viewport)
    settings(page)
    assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"]
