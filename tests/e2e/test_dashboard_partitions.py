"""A partitioned topic in the dashboard: one row of the list, and a page with its partitions."""

import httpx
import pytest

from tests.support.dashboard import Start, Visit, dead_letters, row, toast, told
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
    assert page.get_by_role("button", name="Purge").is_visible()
    assert page.get_by_role("button", name="Delete").count() == 0, "it was offered, and refused: partitions go as a whole"
    page.get_by_title("All its partitions").click()
    page.get_by_role("heading", name="orders", exact=True).wait_for()
    page.reload()
    page.get_by_text("Nothing consumes this topic yet.").wait_for()
    page.get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Type orders to confirm").fill("orders")
    dialog.get_by_role("button", name="Delete topic").click()
    toast(page, "orders is gone.")


def test_its_page_has_the_settings_and_leads_to_messages_and_letters(visit: Visit, start: Start) -> None:
    """Found: the page had no settings and no dead letters; the operator had to look at each partition and its dead letters."""
    broker = start()
    wanted = {"partitions": 3, "visibility": 60_000, "max_attempts": 2}
    httpx.put(f"{broker.http}v1/topics/jobs", json=wanted).raise_for_status()
    httpx.patch(f"{broker.http}v1/topics/jobs%231", json={"ttl": 5000}).raise_for_status()
    dead_letters(broker, "jobs%232", "no such template")
    page = visit(f"{broker.http}#/topics/jobs")
    settings = page.locator(".settings")
    settings.get_by_text("differs").wait_for()
    assert settings.locator("dt").all_inner_texts()[:3] == ["visibility", "max_attempts", "ttl"], "those of its own are first"
    assert settings.locator("dd").all_inner_texts()[:3] == ["1m set here", "2 set here", "differs by partition"]
    page.get_by_title("Dead letters of jobs#2").click()
    page.get_by_text("no such template").first.wait_for()
    page.go_back()
    page.get_by_title("Messages of jobs#2").click()
    page.locator(".entry").first.wait_for()
    page.go_back()
    page.get_by_role("button", name="Settings").click()
    dialog = page.get_by_role("dialog")
    assert dialog.get_by_label("Visibility timeout").input_value() == "1m"
    dialog.get_by_label("Visibility timeout").fill("2m")
    dialog.get_by_role("button", name="Save settings").click()
    toast(page, "jobs has its new settings.")
    settings.get_by_text("2m").wait_for()
    described = httpx.get(f"{broker.http}v1/topics/jobs").json()["parts"]
    assert [part["settings"]["visibility"] for part in described] == [120_000] * 3
    assert [part["settings"].get("ttl") for part in described] == [None, 5000, None], "what differs was not touched"
    page.goto(f"{broker.http}#/topics/jobs.dlq")
    page.get_by_title("Dead letters of jobs#2.dlq").click()
    page.get_by_text("no such template").first.wait_for()


def test_what_is_deleted_beside_what_is_known_is_said(visit: Visit, start: Start) -> None:
    """Found: the dialog counted only the messages of the workers that answered, and said that all partitions would be deleted
    with them."""
    broker = start()
    httpx.put(f"{broker.http}v1/topics/jobs", json={"partitions": 3}).raise_for_status()
    httpx.post(f"{broker.http}v1/topics/jobs%230/messages", content=b"x").raise_for_status()
    page = visit(broker.http)
    told(page, **{"jobs#0": {"worker": 0}, "jobs#1": {"worker": 1, "as_of_ms": None}, "jobs#2": {"worker": 0}})
    page.goto(f"{broker.http}#/topics/jobs")
    page.reload()
    page.get_by_text("3 partitions, 1 old or missing").wait_for()
    page.get_by_role("button", name="Delete").click()
    said = page.get_by_role("dialog").inner_text()
    assert "All partitions go, with 1 message and those of a partition that does not answer, their dead letters" in said
