"""Search of messages, the state of a message at each consumer, a single dead letter, and downloads. In a real Chromium; ADR
0147."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.dashboard import NARROW, WIDE, Visit, dead_letters, publish, toast
from tests.support.requirements import require

pytestmark = [pytest.mark.browser, require("chromium", "playwright")]

FORMULA = '=HYPERLINK("http://x")'


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "d", "--http", "127.0.0.1:0") as broker:
        publish(broker, "orders", "two pizzas", **{"idempotency-key": "order-17", "x-header-color": "red"})
        publish(broker, "orders", FORMULA, **{"x-header-color": "blue"})
        many = "".join(json.dumps({"payload": f"tea {n}"}) + "\n" for n in range(25_000))
        answer = httpx.post(f"{broker.http}v1/topics/orders/messages:batch", content=many,
                            headers={"content-type": "application/x-ndjson"}, timeout=60)  # fmt: skip
        assert answer.status_code == 201
        yield broker


def looked(page: Any, text: str) -> None:
    page.get_by_role("status").filter(has_text=text).wait_for()


def ids(page: Any) -> list[int]:
    return [int(each.get_attribute("data-id")) for each in page.locator(".log > li[data-id]").all()]


def test_a_search_says_how_far_it_looked_and_looks_further(broker: BrokerProcess, visit: Visit) -> None:
    page = visit(f"{broker.http}#/topics/orders/messages")
    page.locator(".entry").first.wait_for()
    page.get_by_role("button", name="Search").click()
    assert page.evaluate("document.activeElement.name") == "text"
    page.keyboard.type("PIZZA")
    page.keyboard.press("Enter")
    looked(page, "Down to id")
    looked(page, "0 messages found, 20,")
    page.get_by_text("Nothing was found so far.").wait_for()
    publish(broker, "orders", "a message that comes meanwhile")
    page.get_by_role("button", name="Look further").click()
    looked(page, "1 message found, 25,002 messages looked at. That is all there is.")
    assert ids(page) == [0]
    assert not page.get_by_role("button", name="Look further").is_visible()
    page.get_by_role("button", name="End search").click()
    page.locator(".preview", has_text="a message that comes meanwhile").wait_for()
    page.get_by_role("button", name="Newest").wait_for()


def test_by_key_header_and_time(broker: BrokerProcess, visit: Visit) -> None:
    page = visit(f"{broker.http}#/topics/orders/messages")
    page.locator(".entry").first.wait_for()
    page.get_by_role("button", name="Search").click()
    form = page.get_by_role("search")
    form.get_by_role("button", name="Search").click()
    toast(page, "Say what to look for.")
    form.get_by_label("Header").fill("color:blue")
    form.get_by_label("Until").fill("2001-01-01T00:00:00")
    form.get_by_role("button", name="Search").click()
    looked(page, "0 messages found, 0 messages looked at. That is all there is.")
    form.get_by_label("Until").fill("2999-01-01T00:00:00")
    form.get_by_label("From").fill("2001-01-01T00:00:00")
    form.get_by_role("button", name="Search").click()
    looked(page, "0 messages found, 20,")
    page.get_by_role("button", name="Look further").click()
    looked(page, "1 message found")
    assert ids(page) == [1]
    form.get_by_label("Header").fill("")
    form.get_by_label("Key").fill("order-17")
    form.get_by_role("button", name="Search").click()
    looked(page, "0 messages found")


def test_a_refused_search_is_said(broker: BrokerProcess, visit: Visit) -> None:
    page = visit(f"{broker.http}#/topics/orders/messages", broken="422")
    page.locator(".entry").first.wait_for()
    page.get_by_role("button", name="Search").click()
    page.get_by_role("search").get_by_label("Key").fill("a key has no blanks")
    page.keyboard.press("Enter")
    toast(page, "The search failed. BAD_ARGUMENT")


def test_what_is_shown_is_saved(broker: BrokerProcess, visit: Visit) -> None:
    page = visit(f"{broker.http}#/topics/orders/messages", accept_downloads=True)
    page.locator(".entry").first.wait_for()
    page.get_by_label("Go to message id").fill("1")
    page.keyboard.press("Enter")
    page.locator('li[data-id="1"] .panel').wait_for()
    shown = ids(page)
    saved = {}
    for kind in ("NDJSON", "CSV"):
        with page.expect_download() as download:
            page.get_by_role("button", name=f"Save what is shown as {kind}").click()
        assert download.value.suggested_filename == f"orders.{kind.lower()}"
        saved[kind] = Path(download.value.path()).read_text()
    messages = [json.loads(line) for line in saved["NDJSON"].splitlines()]
    assert [message["id"] for message in messages] == shown
    assert messages[-2]["payload"] == FORMULA
    rows = list(csv.DictReader(saved["CSV"].splitlines()))
    assert [int(row["id"]) for row in rows] == shown
    assert rows[-2]["payload"] == f"'{FORMULA}", "no spreadsheet runs it"
    assert (rows[-1]["key"], rows[-1]["headers"]) == ("order-17", '{"color":"red"}')


def test_a_message_says_what_it_is_to_each_consumer(broker: BrokerProcess, visit: Visit) -> None:
    publish(broker, "jobs", "a")
    path = f"{broker.http}v1/topics/jobs/messages"
    for consumer in ("holds", "acks", "fails", "gives-up"):
        assert httpx.get(path, params={"consumer": consumer, "wait_s": 5}).status_code == 200
    assert httpx.delete(f"{path}/0", params={"consumer": "acks"}).status_code == 204
    query = {"consumer": "fails", "delay_s": 60, "reason": "<b>no-such-customer</b>"}
    assert httpx.post(f"{path}/0:nack", params=query).status_code == 204
    assert httpx.post(f"{path}/0:nack", params={"consumer": "gives-up", "dead": "true"}).status_code == 204
    letters = f"{broker.http}v1/topics/jobs.dlq/messages"
    assert httpx.get(letters, params={"consumer": "audit", "wait_s": 5}).status_code == 200, "it is stored"
    page = visit(f"{broker.http}#/topics/jobs/messages")
    page.locator(".entry").click()
    lines = page.get_by_label("At each consumer").get_by_role("listitem")
    lines.nth(3).wait_for()
    said = {each.locator("bdi").first.inner_text(): each.inner_text().replace("\n", " ") for each in lines.all()}
    assert said == {
        "holds": "holds in flight 1 attempt", "acks": "acks acked",
        "fails": "fails waits for its time 1 attempt last failure: <b>no-such-customer</b>",
        "gives-up": "gives-up a dead letter jobs.dlq 0",
    }  # fmt: skip
    lines.get_by_role("link", name="jobs.dlq 0").click()
    page.locator('.log > li[data-id="0"]').wait_for()
    page.get_by_role("heading", name="jobs.dlq").wait_for()


def test_one_letter_goes_back_and_one_is_discarded(broker: BrokerProcess, visit: Visit) -> None:
    dead_letters(broker, "invoices", "unpaid", "too-large", "unreadable")
    page = visit(f"{broker.http}#/topics/invoices/dead-letters")
    page.locator('li[data-id="0"] .entry').click()
    page.get_by_role("button", name="Discard it").click()
    dialog = page.get_by_role("dialog")
    assert "no redrive brings it back" in dialog.inner_text()
    dialog.get_by_role("button", name="Discard 1").click()
    toast(page, "1 dead letter discarded.")
    page.locator('li[data-id="0"]', has_text="settled").wait_for()
    page.locator('li[data-id="1"] .entry').click()
    page.get_by_role("button", name="Redrive it").click()
    dialog.get_by_role("button", name="Redrive 1").click()
    toast(page, "1 dead letter went back.")
    page.get_by_label("Choose dead letter 2").check()
    page.get_by_role("button", name="Discard chosen").click()
    dialog.get_by_role("button", name="Discard 1").click()
    page.get_by_role("link", name="Dead letters", exact=True).wait_for()
    described = httpx.get(f"{broker.http}v1/topics/invoices.dlq").json()
    assert (described["letters"], described["redriven_total"]) == (0, 1)


@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["wide", "narrow"])
def test_it_fits_and_has_names(broker: BrokerProcess, visit: Visit, viewport: dict[str, int]) -> None:
    page = visit(f"{broker.http}#/topics/orders/messages", viewport, color_scheme="dark")
    page.locator(".entry").first.wait_for()
    page.get_by_role("button", name="Search").click()
    page.get_by_role("search").get_by_label("Text").fill("tea 1")
    page.keyboard.press("Enter")
    looked(page, "50 messages found")
    assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"]
    page.get_by_role("button", name="Look further").click()
    looked(page, "100 messages found")
    assert len(ids(page)) == 100
