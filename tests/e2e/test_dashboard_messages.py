"""The dashboard's messages and dead letters: shown as they are stored, whatever is in them, and sent back."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime

import httpx
import pytest

from tests.support.broker_process import BrokerProcess
from tests.support.dashboard import Visit, dead_letters, publish, toast
from tests.support.requirements import require

pytestmark = [pytest.mark.browser, require("chromium", "playwright")]

HOSTILE = [
    "<img src=x onerror=\"document.title='taken'\">",
    "</pre><script>document.title='taken'</script>",
    '"><svg/onload=document.title="taken">',
    "javascript:document.title='taken'",
    "\u202egnp.exe \u0000\u0007 {{7*7}} ${document.title='taken'}",
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "d", "--http", "127.0.0.1:0") as broker:
        yield broker


def test_strangers_text_stays_text(broker: BrokerProcess, visit: Visit) -> None:
    for i, text in enumerate(HOSTILE):
        ascii_ = re.sub(r"[^!-~]", "", text)
        publish(broker, "hostile", text, **{"idempotency-key": f"{i}{ascii_}", "x-header-note": ascii_})
    publish(broker, "hostile", bytes(range(256)))
    page = visit(f"{broker.http}#/topics/hostile/messages")
    for i, text in enumerate(HOSTILE):
        line = page.locator(f'li[data-id="{i}"]')
        assert line.locator(".preview").text_content() == text
        line.locator(".entry").click()
        assert line.locator(".payload").text_content() == text
        ascii_ = re.sub(r"[^!-~]", "", text)
        assert line.locator(".pairs dd").all_text_contents() == [f"{i}{ascii_}", ascii_]
    binary = page.locator(f'li[data-id="{len(HOSTILE)}"]')
    binary.locator(".entry").click()
    assert binary.locator(".payload").inner_text().startswith("00000000  00 01 02 03")
    assert page.title() == "hostile · toymq"
    assert page.locator("main img, main script, main iframe, main svg[onload]").count() == 0
    page.goto(f"{broker.http}#/topics/%3Cimg%20src%3Dx%20onerror%3D1%3E")
    page.get_by_text("There is no topic of this name.").wait_for()


def test_json_is_shown_as_it_is_stored(broker: BrokerProcess, visit: Visit) -> None:
    """Found: the page had rounded a long order number."""
    publish(broker, "exact", r'{"id":12345678901234567890,"id" : 1.10,"text":"a , \"b\": [\u00e9]","none":[ ],"in":[{"a":-0}]}')
    page = visit(f"{broker.http}#/topics/exact/messages")
    page.locator(".entry").click()
    assert page.get_by_role("button", name="JSON", exact=True).get_attribute("aria-pressed") == "true"
    assert page.locator(".payload").text_content().split("\n") == [
        "{", '  "id": 12345678901234567890,', '  "id": 1.10,', r'  "text": "a , \"b\": [\u00e9]",', '  "none": [],',
        '  "in": [', "    {", '      "a": -0', "    }", "  ]", "}",
    ]  # fmt: skip


def test_messages_that_could_not_be_loaded_come_when_they_can_be(broker: BrokerProcess, visit: Visit) -> None:
    publish(broker, "slow", "there all the time")
    page = visit(f"{broker.http}#/topics/slow", broken="ERR_|Failed to load")
    page.get_by_text("Nothing consumes this topic yet.").wait_for()
    page.route("**/log?*", lambda route: route.abort())
    page.get_by_role("link", name="Messages").click()
    problem = page.get_by_role("alert").filter(has_text="The messages could not be loaded. UNREACHABLE")
    problem.wait_for()
    assert "may have happened" not in problem.inner_text(), "a read changes nothing"
    page.unroute("**/log?*")
    publish(broker, "another", "the broker speaks, and not of this topic")
    page.locator(".preview", has_text="there all the time").wait_for()
    assert not problem.is_visible()


def test_dead_letters_go_back_some_and_all(broker: BrokerProcess, visit: Visit) -> None:
    dead_letters(broker, "invoices", "no-such-customer", "too-large", "unpaid")
    page = visit(f"{broker.http}#/topics/invoices/dead-letters")
    first = page.locator(".entry", has_text="no-such-customer")
    assert "billing" in first.inner_text()
    assert "1 attempt" in first.inner_text()
    page.get_by_label("Choose dead letter 1").check()
    page.get_by_role("button", name="Redrive 1 chosen").click()
    page.get_by_role("dialog").get_by_role("button", name="Redrive 1").click()
    toast(page, "1 dead letter went back.")
    page.locator('li[data-id="1"]', has_text="settled").wait_for()
    again = httpx.get(f"{broker.http}v1/topics/invoices/messages", params={"consumer": "billing"}).json()["messages"]
    assert [message["payload"] for message in again] == ["too-large"]
    page.get_by_role("button", name="Redrive all").click()
    page.get_by_role("dialog").get_by_role("button", name="Redrive all").click()
    toast(page, "2 dead letters went back.")
    page.locator(".badge.good").nth(2).wait_for()


def test_a_dead_letter_says_when_its_message_was_published_and_when_it_died(broker: BrokerProcess, visit: Visit) -> None:
    """Found: the time at which the dead letter was stored was shown as the time at which its message was published."""
    dead_letters(broker, "mourned", "unpaid")
    published, died = (
        httpx.get(f"{broker.http}v1/topics/{topic}/log", params={"from": 0}).json()["messages"][0]["time_ms"]
        for topic in ("mourned", "mourned.dlq")
    )  # fmt: skip
    assert published < died
    page = visit(f"{broker.http}#/topics/mourned/dead-letters", timezone_id="UTC")
    page.locator(".entry").click()

    def shown(ms: int) -> str:
        return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3] + " UTC"

    page.get_by_text(f"Published {shown(published)}, died {shown(died)}", exact=True).wait_for()
    page.goto(f"{broker.http}#/topics/mourned/messages")
    page.locator(".entry").click()
    page.get_by_text(f"Published {shown(published)}", exact=True).wait_for()


def test_dead_letters_say_why_grouped_and_as_text(broker: BrokerProcess, visit: Visit) -> None:
    hostile = "<img src=x onerror=alert(1)> <b>bold</b>"
    error = {"type": "ValueError", "traceback": f"line 1\n  {hostile}"}
    failures = [{"error": error | {"text": f"{hostile} {n}"}} for n in range(3)]
    path = f"{broker.http}v1/topics/failing/messages"
    for failure in [*failures, {"reason": hostile}]:
        msg_id = publish(broker, "failing", "x")
        assert httpx.get(path, params={"consumer": "w", "wait_s": 5}).json()["messages"][0]["id"] == msg_id
        answer = httpx.post(f"{path}/{msg_id}:nack", params={"consumer": "w", "dead": "true"}, json=failure)
        assert answer.status_code == 204
    page = visit(f"{broker.http}#/topics/failing/dead-letters")
    page.locator(".log > li").nth(3).wait_for()
    first = page.locator('li[data-id="1"] .entry')
    assert "ValueError" in first.inner_text()
    assert f"{hostile} 1" in first.inner_text()
    first.click()
    assert page.get_by_label("Traceback").inner_text() == f"line 1\n  {hostile}\nValueError: {hostile} 1"
    page.get_by_role("button", name="Group by reason").click()
    groups = page.get_by_label("Dead letters by reason").locator("li")
    groups.nth(1).wait_for()
    assert [group.locator("b").first.inner_text() for group in groups.all()] == ["3", "1"]
    assert f"ValueError\nw\n{hostile} 2".split() == groups.nth(0).inner_text().removeprefix("3").split("Newest")[0].split()
    assert hostile in groups.nth(1).inner_text()
    groups.nth(0).get_by_role("button", name="Newest: 2").click()
    page.locator('li[data-id="2"] .panel').wait_for()
    assert "dlq:" not in page.locator("main").inner_text(), "a key of the broker's own"
    assert page.locator("main img, .log b").count() == 0, "a text is no markup"
