"""The keyboard shortcuts of the dashboard, in a real Chromium."""

from typing import Any

import pytest

from tests.support.dashboard import Start, Visit, publish
from tests.support.requirements import require

pytestmark = [pytest.mark.browser, require("chromium", "playwright")]

SLASH = """() => {
  document.activeElement.dispatchEvent(new KeyboardEvent("keydown", { key: "/", bubbles: true, cancelable: true }));
  return document.activeElement.getAttribute("aria-label");
}"""


def held(page: Any) -> Any:
    return page.evaluate(SLASH)


def test_what_is_typed_right_behind_a_slash_goes_into_the_search(visit: Visit, start: Start) -> None:
    """Found by a fast typist: the search field got the focus a turn late, and the first letters were taken as shortcuts."""
    broker = start()
    publish(broker, "orders", "x")
    page = visit(broker.http)
    searches = {
        "": ("Search topics", ".trow"), "consumers": ("Search consumers", ".tools"),
        "connections": ("Search connections", ".listing td"), "broker": ("Search options", ".facts"),
        "topics/orders": ("Search topics", ".facts"), "topics/orders/messages": ("Text", ".entry"),
    }  # fmt: skip
    for place, (what, sign) in searches.items():
        page.goto(f"{broker.http}#/{place}")
        page.locator(f"main {sign}").locator("visible=true").first.wait_for()
        assert held(page) == what, place
        page.keyboard.type("n?/p")
        assert page.evaluate("document.activeElement.value") == "n?/p", place
        page.evaluate("document.activeElement.value = ''")
    page.goto(f"{broker.http}#/topics/orders")
    page.locator("main .facts").wait_for()
    page.keyboard.press("/")
    page.go_back()
    page.locator("main .facts").wait_for()  # the view that had no search is one step back


def test_a_slash_opens_the_search_of_messages(visit: Visit, start: Start) -> None:
    """Found by a trial: on the messages tab a slash led away, to the search of topics."""
    broker = start()
    publish(broker, "orders", "needle")
    page = visit(f"{broker.http}#/topics/orders/messages")
    page.locator(".entry").wait_for()
    page.keyboard.press("/")
    page.keyboard.type("needle")
    page.keyboard.press("Enter")
    page.get_by_text("1 message found").wait_for()
    assert page.url.endswith("#/topics/orders/messages")
