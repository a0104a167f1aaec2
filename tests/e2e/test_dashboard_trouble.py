"""What the first page says is wrong, where it is, and what to do. In a real Chromium; ADR 0146."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.dashboard import NARROW, WIDE, Start, Visit, dead_letters, publish, told
from tests.support.requirements import require

pytestmark = [pytest.mark.browser, require("chromium", "playwright")]

HOUR_MS = 3_600_000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "d", "--http", "127.0.0.1:0") as broker:
        for topic, consumer in (("jobs", "idle"), ("mails", "smtp"), ("labels", "printer"), ("reports", "batch")):
            publish(broker, topic, "x")
            leased = httpx.get(f"{broker.http}v1/topics/{topic}/messages", params={"consumer": consumer, "wait_s": 5})
            assert leased.status_code == 200
        dead_letters(broker, "orders", "unpaid", "too-large")
        yield broker


def wrong(broker: BrokerProcess) -> dict[str, Any]:
    now_ms = httpx.get(f"{broker.http}v1/stats").json()["time_ms"]
    slow = {"slow_since_ms": now_ms - HOUR_MS - 30_000, "oldest_unacked_at_ms": now_ms - 2 * HOUR_MS - 30_000, "backlog": 7}
    return {
        "idle": slow | {"inflight": 0}, "smtp": slow | {"inflight": 1}, "batch": slow | {"inflight": 1, "paused": True},
        "printer": {"attempts_max": 9, "attempts_max_id": 0, "backlog": 1},
        "stats": {"disk_free_bytes": 300 << 20, "limits": {"min_free_bytes": 256 << 20, "max_payload": 1 << 20}},
    }  # fmt: skip


def line(page: Any, word: str) -> Any:
    return page.locator(".troubles li").filter(has=page.locator(".badge", has_text=word))


def test_each_kind_has_its_place_and_what_to_do(broker: BrokerProcess, visit: Visit) -> None:
    page = visit(broker.http)
    told(page, **wrong(broker))
    page.reload()
    page.get_by_role("heading", name="Trouble", exact=True).wait_for()
    idle = line(page, "nothing attached").inner_text().replace("\n", " ")
    assert "idle of jobs has 7 messages that nothing takes, the oldest for 2 h." in idle
    assert "Start its workers." in idle
    assert "is slow since 1 h" in line(page, "lag").nth(0).inner_text()
    assert "Its sessions are paused: resume them." in line(page, "lag").nth(1).inner_text()
    assert "(id 0) 9 times without an ack" in line(page, "redelivered").inner_text()
    assert "orders has 2 dead letters." in line(page, "dead letters").inner_text()
    assert "Disk gets low: 300 MiB are free. Free space: the largest topic is orders.dlq" in line(page, "disk").inner_text()
    places = {
        "nothing attached": "#/topics/jobs", "redelivered": "#/topics/labels/messages", "disk": "#/broker",
        "dead letters": "#/topics/orders.dlq/messages",
    }  # fmt: skip
    for word, place in places.items():
        assert line(page, word).get_by_role("link").get_attribute("href") == place
    line(page, "dead letters").get_by_role("link").press("Enter")
    page.locator(".entry", has_text="unpaid").wait_for()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Trouble 5").click()
    assert sorted(page.locator(".topicname").all_inner_texts()) == ["jobs", "labels", "mails", "orders.dlq", "reports"]


def test_messages_that_wait_for_the_key_of_a_failing_one_are_not_called_slow(broker: BrokerProcess, visit: Visit) -> None:
    page = visit(broker.http)
    stuck = {"mode": "keyed", "ready": 6, "inflight": 1, "retrying": 1, "attempts_max": 4, "attempts_max_id": 0}
    told(page, smtp=wrong(broker)["smtp"] | stuck)
    page.reload()
    line(page, "keys wait").wait_for()
    said = line(page, "keys wait").inner_text().replace("\n", " ")
    assert "smtp of mails has 6 messages that wait behind 1 of the same keys that is retried (most often: id 0" in said
    assert "More workers do not help." in said
    assert line(page, "lag").count() == 0


def test_many_of_a_kind_are_one_line(broker: BrokerProcess, visit: Visit) -> None:
    changes = wrong(broker)
    page = visit(broker.http)
    told(page, **dict.fromkeys(("idle", "smtp", "batch", "printer"), changes["smtp"]))
    page.reload()
    one = line(page, "lag")
    one.wait_for()
    assert one.inner_text().replace("\n", " ").startswith("lag Show them: 4 consumers are slow.")
    one.get_by_role("link").click()
    page.get_by_role("button", name="Slow 4").wait_for()
    assert page.get_by_role("button", name="Slow 4").get_attribute("aria-pressed") == "true"
    page.goto(f"{broker.http}#/filter/letters")
    page.get_by_role("button", name="Dead letters 1").wait_for()
    assert page.locator(".topicname").all_inner_texts() == ["orders.dlq"]


def test_a_low_disk_and_a_failed_topic(broker: BrokerProcess, visit: Visit) -> None:
    page = visit(broker.http)
    damaged = {"state": "degraded", "lost": 3}
    told(page, stats={"disk_low": True, "disk_free_bytes": 1000}, mails={"state": "failed"}, jobs=damaged)
    page.reload()
    line(page, "disk").wait_for()
    assert "is low: 1000 B are free, and publishing is refused." in line(page, "disk").inner_text()
    assert "then restart the broker" in line(page, "failed").inner_text()
    assert "has lost 3 messages. Run toymq verify" in line(page, "damaged").inner_text()


def test_a_worker_that_does_not_answer(broker: BrokerProcess, visit: Visit) -> None:
    page = visit(broker.http)
    now_ms = httpx.get(f"{broker.http}v1/stats").json()["time_ms"]
    away = {"place": "worker 1", "why": "does not answer (Connection refused)", "as_of_ms": now_ms, "pid": 77}
    told(page, said={"here": "worker 0", "away": [away]}, jobs={"worker": 1, "as_of_ms": now_ms}, mails={"worker": 0})
    page.reload()
    told_so = line(page, "no answer").inner_text().replace("\n", " ")
    assert told_so.startswith("no answer worker 1 does not answer (Connection refused). If process 77 stands still")
    assert "kill -9 77 on the broker's machine ends it: what had OK is kept, and it is started again. Until it" in told_so
    line(page, "no answer").get_by_role("link").click()
    page.get_by_role("columnheader", name="Worker").wait_for()
    assert "jobs" in page.locator(".topicname").all_inner_texts()
    page.get_by_text("of them old or missing, without worker 1").wait_for()
    page.goto(f"{broker.http}#/consumers")
    page.get_by_text("of them old, without worker 1").wait_for()
    page.goto(f"{broker.http}#/topics/jobs")
    page.get_by_text("Worker 1, which has this topic, does not answer: this is how it was at 20").wait_for()
    assert page.get_by_role("button", name="Publish").is_enabled(), "another worker passes it on"
    page.goto(f"{broker.http}#/topics/unheard")
    page.get_by_text("Worker 1 does not answer, and may have a topic of this name.").wait_for()


def test_without_trouble_nothing_is_said_and_a_focused_link_stays(visit: Visit, start: Start) -> None:
    broker = start()
    publish(broker, "orders", "x")
    page = visit(broker.http)
    page.locator(".trow").wait_for()
    assert not page.get_by_role("heading", name="Trouble").is_visible()
    dead_letters(broker, "invoices", "unpaid")
    link = line(page, "dead letters").get_by_role("link")
    link.focus()
    dead_letters(broker, "invoices", "too-large")
    page.get_by_text("has 2 dead letters.").wait_for()
    assert page.evaluate("document.activeElement.textContent") == "invoices"
    httpx.post(f"{broker.http}v1/topics/invoices.dlq:redrive", json={}).raise_for_status()
    link.wait_for(state="detached")


@pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["wide", "narrow"])
def test_it_fits(broker: BrokerProcess, visit: Visit, viewport: dict[str, int]) -> None:
    page = visit(broker.http, viewport, color_scheme="dark")
    told(page, **wrong(broker))
    page.reload()
    page.get_by_role("heading", name="Trouble", exact=True).wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"]
