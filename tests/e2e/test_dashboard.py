"""The dashboard in a real Chromium. In every test, errors, a violated content policy and requests to other hosts are
failures."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.cluster_groups import two_groups
from tests.support.cluster_rig import ClusterNode, running_cluster
from tests.support.dashboard import NARROW, WIDE, Start, Visit, answered, dead_letters, publish, row, toast
from tests.support.requirements import require
from toymq.sync import connect

pytestmark = [pytest.mark.browser, require("chromium", "playwright")]

ROWS_MAX = 60
"""So many rows of a list exist at most, whatever its length."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "d", "--http", "127.0.0.1:0") as broker:
        yield broker


def test_an_empty_broker_says_how_to_begin(visit: Visit, start: Start) -> None:
    broker = start()
    page = visit(broker.http, NARROW)
    line = page.locator(".copyline pre").inner_text()
    assert line == f"curl -d 'hello' {broker.http}v1/topics/greetings/messages"
    assert page.evaluate("document.documentElement.scrollWidth") == NARROW["width"]
    publish(broker, "greetings", "hello")
    row(page, "greetings").wait_for()


def test_publishing_moves_the_rate_and_shows_the_message(broker: BrokerProcess, visit: Visit) -> None:
    publish(broker, "orders", "the first")
    page = visit(f"{broker.http}#/topics/orders")
    page.get_by_text("Nothing consumes this topic yet.").wait_for()
    page.get_by_role("button", name="Publish", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Payload").fill('{"tea": 2}')
    dialog.get_by_label("Key").fill("order-7")
    dialog.get_by_role("button", name="Add a header").click()
    dialog.get_by_label("Header name").fill("kind")
    dialog.get_by_label("Header value").fill("grün ☂")
    dialog.get_by_role("button", name="Publish").click()
    toast(page, "Message 1 is on stable storage.")
    page.locator(".legend", has_text=re.compile("Published (?!0 )")).wait_for()
    page.get_by_role("link", name="Messages").click()
    page.locator(".entry", has_text="order-7").click()
    assert page.locator(".payload").inner_text() == '{\n  "tea": 2\n}'
    assert page.locator(".panel .pairs").inner_text().split("\n") == ["Idempotency key", "order-7", "kind", "grün ☂"]
    assert page.locator(".entry .key[title]").get_attribute("title") == "order-7"
    page.get_by_role("button", name="Publish", exact=True).click()
    dialog.get_by_label("Key").fill("order-7")
    dialog.get_by_role("button", name="Publish").click()
    toast(page, "Message 1 has this key already")
    page.get_by_role("button", name="Publish", exact=True).click()
    dialog.get_by_label("Delay").fill("soon")
    dialog.get_by_role("button", name="Publish").click()
    assert "soon is not a time" in dialog.get_by_role("alert").inner_text()
    dialog.get_by_label("Delay").fill("1h")
    dialog.get_by_role("button", name="Publish").click()
    toast(page, "Message 2 is on stable storage.")


def test_a_bare_number_is_seconds_and_no_time_to_live_is_refused(broker: BrokerProcess, visit: Visit) -> None:
    httpx.put(f"{broker.http}v1/topics/timed", json={}).raise_for_status()
    page = visit(f"{broker.http}#/topics/timed")
    page.get_by_role("button", name="Publish", exact=True).click()
    dialog = page.get_by_role("dialog")
    for nothing in ("0", "0s", "0.1ms"):
        dialog.get_by_label("Time to live").fill(nothing)
        dialog.get_by_role("button", name="Publish").click()
        assert "nothing would be delivered" in dialog.get_by_role("alert").inner_text()
    dialog.get_by_label("Time to live").fill("60")
    dialog.get_by_label("Delay").fill("0.5")
    with page.expect_request("**/messages") as request:
        dialog.get_by_role("button", name="Publish").click()
    sent = request.value.headers
    assert (sent["x-ttl-ms"], sent["x-delay-ms"]) == ("60000", "500")
    toast(page, "Message 0 is on stable storage.")
    page.get_by_role("button", name="Settings", exact=True).click()
    dialog.get_by_label("Visibility timeout").fill("90")
    dialog.get_by_role("button", name="Save settings").click()
    toast(page, "timed has its new settings.")
    assert httpx.get(f"{broker.http}v1/topics/timed").json()["settings"] == {"visibility": 90_000}


def fact(page: Any, name: str) -> str:
    """Return a figure of a topic's page."""
    return str(page.locator(".facts div").filter(has=page.get_by_text(name, exact=True)).locator("dd").inner_text())


def test_what_is_published_for_later_is_scheduled_and_no_backlog_before_there_is_a_consumer(
    broker: BrokerProcess, visit: Visit
) -> None:
    for _ in range(2):
        publish(broker, "remind", "x", **{"X-Delay-Ms": "3600000"})
    page = visit(f"{broker.http}#/topics/remind")
    page.get_by_text("Nothing consumes this topic yet.").wait_for()
    assert (fact(page, "Messages"), fact(page, "Backlog"), fact(page, "Scheduled")) == ("2", "0", "2")


def test_a_consumer_says_how_many_messages_it_retries(broker: BrokerProcess, visit: Visit) -> None:
    """Found: nacked messages are no backlog, so a consumer that failed at everything looked healthy."""
    publish(broker, "failing", "a")
    path = f"{broker.http}v1/topics/failing/messages"
    assert httpx.get(path, params={"consumer": "worker", "wait_s": 5}).status_code == 200
    assert httpx.post(f"{path}/0:nack", params={"consumer": "worker", "delay_s": 3600}).is_success
    page = visit(f"{broker.http}#/topics/failing")
    line = page.locator(".consumers tbody tr")
    line.locator(".badge", has_text="1 retrying").wait_for()
    assert line.locator('[data-label="Backlog"]').inner_text() == "0"


def test_consumers_have_their_lag_and_can_be_moved_and_forgotten(broker: BrokerProcess, visit: Visit) -> None:
    publish(broker, "jobs", "a")
    publish(broker, "jobs", "b")
    path = f"{broker.http}v1/topics/jobs/messages"
    assert httpx.get(path, params={"consumer": "worker"}).status_code == 200
    page = visit(f"{broker.http}#/topics/jobs")
    line = page.locator(".consumers tbody tr")
    line.get_by_role("cell", name=re.compile(r"^2$")).first.wait_for()
    assert line.locator('[data-label="Inflight"]').inner_text() == "1"
    assert line.locator(".badge", has_text="nothing attached").count() == 0, "a client that polls is there"
    line.get_by_role("button", name="Move worker").click()
    page.get_by_role("dialog").get_by_label("It goes on at").select_option("latest")
    page.get_by_role("dialog").get_by_role("button", name="Move consumer").click()
    toast(page, "worker was moved.")
    page.locator('td[data-label="Backlog"]', has_text=re.compile("^0$")).wait_for()
    line.get_by_role("button", name="Forget worker").click()
    answered(page, "Forget consumer", "worker")
    page.get_by_text("Nothing consumes this topic yet.").wait_for()


def test_a_topic_is_made_set_purged_and_deleted(broker: BrokerProcess, visit: Visit) -> None:
    page = visit(broker.http, broken="422")
    page.locator(".tile").first.wait_for()
    page.keyboard.press("n")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("no/name")
    dialog.get_by_role("button", name="Create topic").click()
    dialog.get_by_role("alert").filter(has_text="A name is letters").wait_for()
    dialog.get_by_label("Name").fill("x" * 200)
    dialog.get_by_role("button", name="Create topic").click()
    dialog.get_by_role("alert").filter(has_text="BAD_NAME").wait_for()
    dialog.get_by_label("Name").fill("mine")
    dialog.get_by_text("Settings").click()
    dialog.get_by_label("Visibility timeout").fill("1.5m")
    dialog.get_by_role("button", name="Create topic").click()
    page.get_by_role("heading", name="mine", exact=True).wait_for()
    page.get_by_role("definition").filter(has_text="90s set here").wait_for()
    page.get_by_role("button", name="Settings", exact=True).click()
    assert dialog.get_by_label("Visibility timeout").input_value() == "90s"
    dialog.get_by_label("Visibility timeout").fill("")
    dialog.get_by_label("Log size at most").fill("64 MiB")
    dialog.get_by_role("button", name="Save settings").click()
    toast(page, "mine has its new settings.")
    assert httpx.get(f"{broker.http}v1/topics/mine").json()["settings"] == {"retain_max_bytes": 64 * 1024 * 1024}
    publish(broker, "mine", "x")
    page.get_by_role("link", name="Messages 1").wait_for()
    page.get_by_role("button", name="Purge", exact=True).click()
    answered(page, "Purge", "mine")
    toast(page, "mine is empty.")
    described = httpx.get(f"{broker.http}v1/topics/mine").json()
    assert (described["messages"], described["next_id"]) == (0, 1)
    page.get_by_role("button", name="Delete", exact=True).click()
    answered(page, "Delete topic", "mine")
    toast(page, "mine is gone.")
    assert httpx.get(f"{broker.http}v1/topics/mine").status_code == 404


def test_the_page_survives_its_broker(visit: Visit, start: Start) -> None:
    broker = start()
    port = broker.http.rstrip("/").rpartition(":")[2]
    publish(broker, "orders", "before")
    page = visit(broker.http, broken="ERR_|Failed to load")
    row(page, "orders").wait_for()
    broker.kill()
    page.get_by_text("The broker does not answer.").wait_for()
    assert row(page, "orders").is_visible(), "what was known stays"
    broker = start(http=f"127.0.0.1:{port}")
    toast(page, "The broker is back.")
    assert page.get_by_text("The broker does not answer.").count() == 0
    publish(broker, "later", "after")
    row(page, "later").wait_for()


def test_silence_is_noticed_and_its_end(visit: Visit, start: Start) -> None:
    """A broker stopped with SIGSTOP keeps its sockets open: no request fails, and no answer comes."""
    broker = start()
    publish(broker, "orders", "before")
    page = visit(broker.http, broken="ERR_|Failed to load", clock=True)
    row(page, "orders").wait_for()
    os.kill(broker.pid, signal.SIGSTOP)
    page.clock.fast_forward(10_000)
    page.get_by_text("The broker does not answer.").wait_for()
    os.kill(broker.pid, signal.SIGCONT)
    page.clock.fast_forward(10_000)
    toast(page, "The broker is back.")


def test_trouble_is_said(visit: Visit, start: Start, tmp_path: Path) -> None:
    broker = start()
    for i in range(3):
        publish(broker, "broken", f"message {i} with a payload")
        publish(broker, "sound", "x")
    assert broker.stop() == 0
    (segment,) = (tmp_path / "d" / "topics" / "broken").glob("*.log")
    damaged = bytearray(segment.read_bytes())
    damaged[damaged.index(b"message 1")] ^= 1
    segment.write_bytes(damaged)
    broker = start("--min-free-bytes", str(1 << 60))
    httpx.post(f"{broker.http}v1/topics/sound/messages", content="x")
    page = visit(broker.http)
    page.locator(".banner", has_text="The disk is low").wait_for()
    page.locator(".banner", has_text="1 topic degraded: broken").get_by_role("button").click()
    assert page.locator(".topicname").all_inner_texts() == ["broken"]


@require("tmpfs")
def test_dead_letters_are_trouble_until_they_went_back(visit: Visit, start: Start) -> None:
    """Found by a trial: "Trouble: None. Good." stood beside 528 letters."""
    broker = start()
    dead_letters(broker, "orders", "no-such-customer", "no-such-product")
    page = visit(broker.http)
    page.get_by_role("button", name="Trouble 1", exact=True).click()
    assert page.locator(".topicname").all_inner_texts() == ["orders.dlq"]
    assert httpx.post(f"{broker.http}v1/topics/orders.dlq:redrive", json={}).status_code == 200
    page.get_by_text("No topic failed, is damaged or has dead letters").wait_for()
    page.get_by_role("button", name="Trouble", exact=True).wait_for()


def test_letters_that_went_back_do_not_count_at_the_topic_of_letters(visit: Visit, start: Start) -> None:
    """Found: the tab showed 60 at the topic and 121 at its dead-letter topic, of which 61 had been redriven."""
    broker = start()
    dead_letters(broker, "orders", "no-such-customer", "no-such-product")
    first = httpx.get(f"{broker.http}v1/topics/orders.dlq/log").json()["messages"][0]["id"]
    assert httpx.post(f"{broker.http}v1/topics/orders.dlq:redrive", json={"ids": [first]}).json() == {"redriven": 1}
    page = visit(broker.http)
    for place in ("orders", "orders.dlq"):
        page.goto(f"{broker.http}#/topics/{place}")
        page.get_by_role("link", name="Dead letters 1", exact=True).wait_for()
    page.goto(broker.http)
    assert row(page, "orders.dlq").locator(".c-backlog").inner_text() == "1"


OUTSIDE = """(within) => [...document.querySelectorAll(within)].flatMap((box) => [...box.querySelectorAll('*')]
  .filter((one) => one.getClientRects().length && one.getBoundingClientRect().right > box.getBoundingClientRect().right + 1)
  .map((one) => one.textContent))"""


@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["wide", "narrow"])
def test_long_names_stay_where_they_belong(broker: BrokerProcess, visit: Visit, viewport: dict[str, int]) -> None:
    """Found by a trial: the name of a consumer lay over the payloads of its dead letters."""
    topic, consumer = "t" * 150, "c" * 190
    publish(broker, topic, "x")
    path = f"{broker.http}v1/topics/{topic}/messages"
    leased = httpx.get(path, params={"consumer": consumer, "wait_s": 5}).json()["messages"][0]
    query = {"consumer": consumer, "dead": "true", "reason": "r" * 200}
    assert httpx.post(f"{path}/{leased['id']}:nack", params=query).status_code == 204
    page = visit(broker.http, viewport)
    boxes = {"": ".trow", f"topics/{topic}": ".consumers th[scope=row]", f"topics/{topic}/dead-letters": "span.facts"}
    for place, within in boxes.items():
        page.goto(f"{broker.http}#/{place}")
        page.locator(within).first.wait_for()
        assert page.evaluate(OUTSIDE, within) == [], place
        assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"], place


def test_a_full_disk_is_said_without_a_mark_to_stop_at(visit: Visit, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "toymq-test", str(disk)], check=True)
    try:
        with BrokerProcess(disk / "d", "--http", "127.0.0.1:0") as broker:
            publish(broker, "orders", "before")
            page = visit(f"{broker.http}#/topics/orders", broken="507")
            page.get_by_role("heading", name="orders", exact=True).wait_for()
            assert page.locator(".banner").count() == 0
            with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
                while True:
                    filler.write(bytes(4096))
            page.locator(".banner", has_text="The disk is full, or nearly").wait_for()
            page.get_by_role("button", name="Publish", exact=True).click()
            dialog = page.get_by_role("dialog")
            dialog.get_by_label("Payload").fill("x" * 10_000)
            dialog.get_by_role("button", name="Publish").click()
            dialog.get_by_role("alert").filter(has_text="DISK_FULL").wait_for()
            (disk / "filler").unlink()
            dialog.get_by_role("button", name="Publish").click()
            toast(page, "Message 1 is on stable storage.")
            page.locator(".banner").wait_for(state="detached")
            page.goto("about:blank")
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_five_hundred_topics_by_keyboard(visit: Visit, start: Start) -> None:
    broker = start()
    with httpx.Client() as client:
        for i in range(500):
            assert client.put(f"{broker.http}v1/topics/t-{i:03}").status_code == 201
    page = visit(broker.http)
    row(page, "t-000").wait_for()
    rows = page.locator(".trow")
    assert rows.count() < ROWS_MAX
    page.keyboard.press("ArrowDown")
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement.textContent") == "t-499"
    assert rows.count() < ROWS_MAX
    bar, head = page.locator(".bar").bounding_box(), page.locator(".thead").bounding_box()
    assert head["y"] == bar["height"], "the head of the list stays below that of the page"
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="t-498").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("table", name="Topics").wait_for()
    page.keyboard.press("/")
    page.keyboard.type("49")
    page.get_by_role("status").filter(has_text="15 of 500 topics").wait_for()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.textContent") == "t-049"
    page.keyboard.press("?")
    page.get_by_role("dialog").get_by_text("search the list").wait_for()
    page.keyboard.press("Escape")
    assert page.get_by_role("dialog").count() == 0


def test_theme_and_small_screens(broker: BrokerProcess, visit: Visit) -> None:
    publish(broker, "a-name-that-is-far-too-long-for-a-telephone.and-goes-on.and-on.and-on", "x" * 10_000)
    dead_letters(broker, "narrow", "no-such-customer")
    page = visit(broker.http, NARROW, color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    page.get_by_role("searchbox").fill("narrow")
    row(page, "narrow").wait_for()
    assert page.get_by_role("link", name="API", exact=True).is_visible()
    dark = page.evaluate(ground)
    page.get_by_role("button", name="Theme: Auto").click()
    assert page.evaluate(ground) != dark
    page.reload()
    page.get_by_role("button", name="Theme: Light").click()
    assert page.evaluate(ground) == dark, "the choice was remembered"
    long = "a-name-that-is-far-too-long-for-a-telephone.and-goes-on.and-on.and-on"
    for place in ("", f"topics/{long}", f"topics/{long}/messages", "topics/narrow", "topics/narrow/dead-letters"):
        page.goto(f"{broker.http}#/{place}")
        page.locator("main :is(.trow, .facts, .entry)").first.wait_for()
        assert page.evaluate("document.documentElement.scrollWidth") == NARROW["width"], place


@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["wide", "narrow"])
def test_times_say_how_long_ago_and_when_in_the_zone_of_the_viewer(
    broker: BrokerProcess, visit: Visit, viewport: dict[str, int]
) -> None:
    """Found: times were local without a zone, and those of other days did not fit into their column."""
    publish(broker, "times", "first")
    page = visit(f"{broker.http}#/topics/times/messages", viewport, timezone_id="Asia/Kolkata", clock=True)
    stamp = page.locator(".entry time").first
    assert re.fullmatch(r"now|\d+ s ago", stamp.inner_text())
    when = stamp.get_attribute("title")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} UTC\+05:30", when)
    page.locator(".entry").first.click()
    page.locator(".panel", has_text=f"Published {when}").wait_for()
    for days, text in ((2, re.compile(r"^2 d ago$")), (60, re.compile(f"^{when[:10]}$"))):
        page.clock.set_system_time(datetime.now(UTC) + timedelta(days=days))
        page.locator(".entry time", has_text=text).first.wait_for()
    assert stamp.evaluate("e => e.getClientRects().length === 1 && e.scrollWidth <= e.clientWidth + 1"), "one line"


def test_everything_has_a_name_for_those_who_do_not_see(broker: BrokerProcess, visit: Visit) -> None:
    dead_letters(broker, "spoken", "no-such-customer")
    page = visit(broker.http)
    nameless = r"- (?:button|link|checkbox|textbox|searchbox|combobox)(?: \[.*\])?:?$"
    topic = [f"topics/spoken{tab}" for tab in ("", "/messages", "/dead-letters")]
    for place in ("", *topic, "connections", "consumers", "broker"):
        page.goto(f"{broker.http}#/{place}")
        page.locator("main :is(.trow, .facts, .entry, .listing td)").first.wait_for()
        tree = page.locator("body").aria_snapshot()
        assert re.findall(nameless, tree, re.MULTILINE) == [], tree
    assert page.evaluate("[...document.querySelectorAll('[aria-live]')].map((one) => one.id)") == ["banners", "toasts"]


def test_the_page_is_built_as_those_who_do_not_see_need_it(broker: BrokerProcess, visit: Visit) -> None:
    """Found by axe-core: a column without a name, a list of terms with a paragraph, a page without a heading."""
    publish(broker, "built", "x")
    page = visit(broker.http)
    signs = {
        "": ".trow", "topics/built": ".facts", "topics/built/messages": ".entry", "topics/nothing": ".empty",
        "connections": ".listing td", "consumers": ":is(.trow, .empty)", "broker": ".listing td",
    }  # fmt: skip
    for place, sign in signs.items():
        page.goto(f"{broker.http}#/{place}")
        page.locator(f"main {sign}").locator("visible=true").first.wait_for()
        headings = page.locator("main h1").locator("visible=true")
        assert headings.count() == 1, place
        nameless = "[...document.querySelectorAll('th, [role=columnheader]')].filter((one) => !one.textContent.trim()).length"
        assert page.evaluate(nameless) == 0, place
        assert page.evaluate("document.querySelectorAll('dl > :not(dt, dd, div)').length") == 0, place


def test_connections_are_searched_and_closed(broker: BrokerProcess, visit: Visit) -> None:
    httpx.put(f"{broker.http}v1/topics/mails", json={}).raise_for_status()
    hostile = "<img/src=x>"
    with broker.connect() as wire:
        assert wire.ask(b"HELLO 1 name=%b\n" % hostile.encode()).startswith(b"HELLO")
        assert wire.ask(b"SUB mails billing\n").startswith(b"OK")
        page = visit(broker.http)
        page.get_by_role("link", name="Connections").click()
        assert page.get_by_role("link", name="Connections").get_attribute("aria-current") == "page"
        own = page.locator("tr", has_text="this page")
        own.wait_for()
        assert own.get_by_role("button").count() == 0, "the page does not cut itself off"
        page.keyboard.press("/")
        page.keyboard.type("BILLING")
        row = page.locator("tbody tr")
        page.get_by_text(re.compile(r"^1 of \d+ connections$")).wait_for()
        assert row.locator(".name").inner_text() == hostile
        assert row.locator('[data-label="Subscriptions"]').inner_text() == "mails as billing"
        row.locator('[data-label="Sent /s"]', has_text="0 B").wait_for()
        row.get_by_role("button", name=re.compile("Close toymq-")).click()
        dialog = page.get_by_role("dialog")
        assert "is delivered again" in dialog.inner_text()
        dialog.get_by_role("button", name="Close connection").click()
        toast(page, f"{hostile} is closed.")
        page.get_by_text("No connection matches.").wait_for()
        assert wire.at_end()
    for viewport in (WIDE, NARROW):
        page.set_viewport_size(viewport)
        assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"]


@require("etcd", "proc")
def test_the_leader_of_a_group_shows_the_groups(visit: Visit, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as aside, contextlib.ExitStack() as running:

        def start() -> ClusterNode:
            rigs = running.enter_context(two_groups(tmp_path))
            with connect(rigs["a"].urls) as client:
                client.create("there", {"group": "b"})
                client.pub("there", b"hello")
            return rigs["a"].nodes["a1"]

        url = aside.submit(start).result().http
        page = visit(url, broken="net::|421", origin="http://127.0.0.1")
        groups = page.get_by_role("list", name="Groups")
        groups.get_by_role("listitem").filter(has_text="Group a has 0 topics").wait_for()
        groups.get_by_role("listitem").filter(has_text="Group b has 1 topic,").wait_for()
        page.goto(f"{url}#/broker")
        page.get_by_text("The last hour, process, disk, memory, limits, webhooks, alerts and options are").wait_for()
        page.goto(f"{url}#/topics/there")
        page.get_by_text("The settings could not be read. The topic is in group b: open it there.").wait_for()
        page.get_by_role("link", name="Messages 1").click()
        page.get_by_role("alert").get_by_role("link", name="open it there").click()
        page.locator(".entry", has_text="hello").wait_for()
        assert not page.url.startswith(url)
        assert page.url.endswith("/#/topics/there/messages")


@require("etcd", "proc")
def test_the_leader_of_a_cluster_shows_its_copies(visit: Visit, tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as aside, contextlib.ExitStack() as running:  # Playwright has a loop on this thread

        def start_pair() -> tuple[ClusterNode, ClusterNode]:
            rig = running.enter_context(running_cluster(tmp_path, names=("n1", "n2")))
            asyncio.run(rig.in_sync(2))
            leader = asyncio.run(rig.leader())
            return leader, next(node for node in rig.nodes.values() if node is not leader)

        leader, follower = aside.submit(start_pair).result()
        page = visit(leader.http, broken="net::")  # it ends before the page does
        cluster = page.get_by_role("region", name="The cluster")
        cluster.get_by_text("2 copies in sync").wait_for()
        cluster.get_by_role("listitem").filter(has_text=f"{follower.name} has everything").wait_for()
        assert page.locator(".banner").count() == 0
        follower.kill_machine()
        page.locator(".banner", has_text="One copy is in sync: this one").wait_for()
        cluster.get_by_text("No follower is connected.").wait_for()
