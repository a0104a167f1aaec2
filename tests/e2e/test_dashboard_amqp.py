"""The dashboard's page of AMQP, in a real Chromium: exchanges, bindings, queues, connections with their channels."""

import re
from collections.abc import Iterator
from typing import Any

import pika
import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.dashboard import NARROW, WIDE, Start, Visit
from tests.support.requirements import require

pytestmark = [pytest.mark.browser, require("chromium", "playwright")]

NONE = "\N{EN DASH}"
HOSTILE = "<img/src=x>" + "e" * 200
CUT_OFF = """() => { const box = document.getElementById('places'), { left, right } = box.getBoundingClientRect();
  const outside = (one) => one.left < Math.max(left, 0) || one.right > Math.min(right, innerWidth);
  return [...box.children].filter((one) => outside(one.getBoundingClientRect())).map((one) => one.textContent) }"""
"""The places of the navigation that cannot be seen whole. All five are there with AMQP."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    options = ("--http", "127.0.0.1:0", "--amqp", "127.0.0.1:0")
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "d", *options) as broker:
        parameters = pika.URLParameters(f"{broker.amqp}?client_properties={{'connection_name':'mailer'}}")
        with pika.BlockingConnection(parameters) as connection:
            channel = connection.channel()
            channel.exchange_declare("orders", "topic", durable=True, arguments={"alternate-exchange": "unrouted"})
            channel.exchange_declare(HOSTILE, "fanout", auto_delete=True)
            channel.queue_declare("mails@host", durable=True, arguments={"x-message-ttl": 60_000})
            channel.queue_bind("mails@host", "orders", "mail.#")
            channel.queue_bind("mails@host", "amq.headers", "", {"x-match": "any", "color": "red"})
            channel.exchange_bind(HOSTILE, "orders", "#")
            channel.confirm_delivery()
            for body in "abc":
                channel.basic_publish("orders", "mail.new", body)
            channel.basic_qos(prefetch_count=2)
            channel.basic_consume("mails@host", lambda *_: None)
            connection.process_data_events(1)
            channel.queue_declare("readings", durable=True, arguments={"x-queue-type": "stream"})
            channel.basic_publish("", "readings", "21.5")
            for number in range(119):
                channel.queue_declare(f"many-{number:03}", durable=True)
            yield broker


def rows(page: Any) -> list[str]:
    return [re.sub(r"\s+", " ", text).strip().replace(NONE, "-") for text in page.locator("tbody tr").all_inner_texts()]


def row(page: Any, name: str) -> Any:
    return page.locator("tbody tr").filter(has=page.locator("th", has_text=re.compile(rf"^{re.escape(name)}$")))


def test_what_clients_declared_is_shown(broker: BrokerProcess, visit: Visit) -> None:
    page = visit(broker.http)
    page.get_by_role("link", name="AMQP", exact=True).click()
    page.get_by_role("status").filter(has_text="8 exchanges").wait_for()
    orders = row(page, "orders")
    labels = ("Type", "Features", "Alternate", "Bindings")
    shown = {label: orders.locator(f'[data-label="{label}"]').inner_text() for label in labels}
    assert shown == {"Type": "topic", "Features": "durable", "Alternate": "unrouted", "Bindings": "2"}
    assert row(page, "(default)").locator('[data-label="Features"]').inner_text() == "durable, predeclared"
    assert row(page, HOSTILE).locator('[data-label="Features"]').inner_text() == "auto-delete"
    page.get_by_role("link", name="Bindings").click()
    page.get_by_role("status").filter(has_text="3 bindings").wait_for()
    assert rows(page) == [
        'amq.headers mails@host queue - x-match: "any", color: "red"', "orders mails@host queue mail.# -",
        f"orders {HOSTILE} exchange # -",
    ]  # fmt: skip
    page.get_by_role("link", name="Queues").click()
    page.get_by_role("status").filter(has_text="1 to 100 of 121 queues").wait_for()
    page.get_by_role("button", name="Next").click()
    page.get_by_role("status").filter(has_text="101 to 121 of 121 queues").wait_for()
    assert page.get_by_role("button", name="Next").count() == 0
    page.get_by_role("button", name="Previous").click()
    page.keyboard.press("/")
    page.keyboard.type("MAILS")
    page.get_by_role("status").filter(has_text="1 of 121 queues").wait_for()
    assert rows(page) == ["mails@host durable 1 1 x-message-ttl: 60000"]
    page.get_by_role("searchbox").fill("readings")
    features = page.locator("tbody tr", has_text="readings").locator('[data-label="Features"]')
    assert features.inner_text() == "durable, stream: each reader has its own position"
    page.get_by_role("searchbox").fill("mails")
    page.get_by_role("link", name="mails@host").click()
    page.get_by_role("heading", name="_amqp-mails-40host", exact=True).wait_for()


def test_connections_have_their_channels(broker: BrokerProcess, visit: Visit) -> None:
    page = visit(f"{broker.http}#/amqp/connections")
    page.get_by_role("status").filter(has_text="1 connection").wait_for()
    channels = page.locator(".channels li")
    assert channels.all_inner_texts() == ["1: confirms, 1 consumer, prefetch 2, 2 unacked"]
    name = page.locator("tbody .name")
    assert name.inner_text() == "mailer"
    assert re.fullmatch(r"mailer, \S+", name.get_attribute("title")), "a long name is cut, and its title has the whole of it"


def test_nothing_is_said_before_the_answer_is_there(broker: BrokerProcess, visit: Visit) -> None:
    """Found by a trial: the page showed "No connection of AMQP matches." for a moment, although there was one."""
    page = visit(f"{broker.http}#/amqp/exchanges")
    page.locator("tbody tr").first.wait_for()
    asked: list[Any] = []
    page.route("**/v1/connections?*", lambda route: asked.append(route))
    with page.expect_request("**/v1/connections?*"):
        page.get_by_role("navigation", name="AMQP").get_by_role("link", name="Connections").click()
    assert page.locator("main section").inner_text().strip() == ""
    asked.pop().continue_()
    page.unroute("**/v1/connections?*")
    page.get_by_role("status").filter(has_text="1 connection").wait_for()
    page.get_by_role("searchbox").fill("no-such-connection")
    page.get_by_text("No connection of AMQP matches.").wait_for()


@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["wide", "narrow"])
def test_it_fits(broker: BrokerProcess, visit: Visit, viewport: dict[str, int]) -> None:
    page = visit(broker.http, viewport)
    for part in ("exchanges", "bindings", "queues", "connections"):
        page.goto(f"{broker.http}#/amqp/{part}")
        page.locator("tbody tr").first.wait_for()
        assert page.evaluate(CUT_OFF) == [], "places"
        assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"], part
        assert page.locator("main h1").count() == 1
        nameless = r"- (?:button|link|searchbox)(?: \[.*\])?:?$"
        assert re.findall(nameless, page.locator("body").aria_snapshot(), re.MULTILINE) == []


def test_a_stream_has_no_backlog(broker: BrokerProcess, visit: Visit) -> None:
    """Found by a trial: a stream's readers come and go with positions of their own, and all its messages looked like a
    backlog."""
    page = visit(f"{broker.http}#/topics/readings")
    page.get_by_text("A stream: each reader of AMQP has a position of its own").wait_for()
    fact = page.locator(".facts div").filter(has=page.get_by_text("Backlog", exact=True))
    assert fact.locator("dd").inner_text() == NONE
    page.goto(broker.http)
    page.get_by_role("searchbox").fill("readings")
    assert page.locator(".trow .c-backlog").inner_text() == "0"


def test_a_broker_without_amqp_shows_no_page_of_it(visit: Visit, start: Start) -> None:
    page = visit(start().http)
    page.get_by_role("link", name="Broker", exact=True).wait_for()
    assert page.get_by_role("link", name="AMQP").count() == 0
