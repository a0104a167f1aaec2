"""A partitioned topic in the dashboard: one row of the list, and a page with its partitions."""

import pytest

from tests.support.dashboard import Start, Visit, row, toast
from tests.support.requirements import require

pytestmark = [pytest.mark.browser, require("chromium", "playwright")]


def test_a_partitioned_topic_is_one_with_its_parts(visit: Visit, start: Start) -> None:
    broker = start()
    page = visit(broker.http)
    page.get_by_role("button", name="Make a topic by hand").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("orders")
    dialog.get_by_label("Partitions").fill("4")
    dialog.get_by_role("button", name="Create topic").click()
    page.get_by_text("4 partitions").wait_for()
    page.get_by_role("button", name="Publish", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Payload").fill("hello")
    dialog.get_by_label("Route").fill("customer-7")
    dialog.get_by_role("button", name="Publish").click()
    toast(page, "Message 0 of partition 0 is on stable storage.")
    page.get_by_role("row", name="orders#0 1").wait_for()
    page.goto(f"{broker.http}#/")
    row(page, "orders").get_by_text("4 partitions").wait_for()
    assert page.locator(".trow .topicname").all_inner_texts() == ["orders"], "one row"
    row(page, "orders").click()
    page.get_by_role("link", name="orders#0").click()
    page.get_by_role("heading", name="orders#0").wait_for()
    page.goto(f"{broker.http}#/topics/orders")
    page.reload()
    page.get_by_text("Nothing consumes this topic yet.").wait_for()
    page.get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Type orders to confirm").fill("orders")
    dialog.get_by_role("button", name="Delete topic").click()
    toast(page, "orders is gone.")
