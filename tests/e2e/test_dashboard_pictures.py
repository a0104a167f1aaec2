"""Ten questions of an operator, answered by the page alone, and the pictures of it in the documentation.

``make pictures`` writes them into docs/images (ADR 0133): ``TOYMQ_PICTURES`` names the directory.
"""

import io
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_process import ROOT, BrokerProcess
from tests.support.dashboard import Visit
from tests.support.dashboard_scene import VIEWPORT, Scene, story
from tests.support.requirements import require

pytestmark = [pytest.mark.browser, require("chromium", "playwright")]

COLOURS = 240
BYTES_MAX = 60_000
"""Of a picture: seven of them are in every clone."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with story(tmp_path_factory.mktemp("story")) as broker:
        yield broker


def taken(page: Any) -> bytes:
    """Return a screenshot of a page, reduced to its most frequent colours: a quarter of the size."""
    from PIL import Image

    page.mouse.move(0, 400)
    image = Image.open(io.BytesIO(page.screenshot(animations="disabled", caret="hide"))).convert("RGB")
    found = sorted(image.getcolors(image.width * image.height), reverse=True)[:COLOURS]
    palette = Image.new("P", (1, 1))
    palette.putpalette([value for _, colour in found for value in colour])
    small = io.BytesIO()
    image.quantize(palette=palette, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    return small.getvalue()


def trouble(page: Any) -> str:
    page.get_by_role("heading", name="Trouble", exact=True).wait_for()
    return str(page.get_by_role("region", name="Trouble").inner_text())


def slow(page: Any) -> str:
    page.get_by_role("link", name="Consumers").click()
    page.get_by_role("button", name="Slow 1").wait_for()
    return str(page.get_by_role("row").filter(has_text="smtp").inner_text())


def detached(page: Any) -> str:
    page.get_by_role("link", name="Consumers").click()
    page.get_by_role("button", name="Nothing attached 1").click()
    return str(page.get_by_role("row").filter(has_text="smtp").inner_text())


def again(page: Any) -> str:
    page.get_by_role("link", name="Consumers").click()
    page.get_by_role("button", name="Redelivering 1").click()
    return str(page.locator('[data-label="Most attempts"]').get_attribute("title"))


def letters(page: Any) -> str:
    page.goto(page.url.split("#")[0] + "#/topics/invoices/dead-letters")
    page.locator(".entry").first.wait_for()
    page.get_by_role("button", name="Group by reason").click()
    page.get_by_label("Dead letters by reason").locator("li").first.wait_for()
    page.locator(".entry").first.click()
    page.get_by_label("Traceback").wait_for()
    return str(page.locator("main").inner_text())


def searched(page: Any) -> str:
    page.goto(page.url.split("#")[0] + "#/topics/orders/messages")
    page.locator(".entry").first.wait_for()
    page.get_by_role("button", name="Search").click()
    page.get_by_role("search").get_by_label("Key").fill("order-10017")
    page.keyboard.press("Enter")
    page.get_by_text("1 message found").wait_for()
    page.locator(".entry").first.click()
    page.locator(".states li").first.wait_for()
    return str(page.locator("main").inner_text())


def will(page: Any) -> str:
    page.goto(page.url.split("#")[0] + "#/topics/reports/messages")
    page.locator(".entry").first.wait_for()
    page.get_by_label("Go to message id").fill("504")
    page.keyboard.press("Enter")
    page.locator('li[data-id="504"] .states li').first.wait_for()
    return str(page.locator('li[data-id="504"]').inner_text())


def hour(page: Any) -> str:
    page.goto(page.url.split("#")[0] + "#/topics/emails")
    page.get_by_role("button", name="1 hour").click()
    page.get_by_role("slider", name="Oldest unacked, the last hour, at a time").wait_for()
    page.locator("dl.settings dt").first.wait_for()
    return str(page.get_by_role("slider", name="Oldest unacked, the last hour, at a time").get_attribute("aria-valuetext"))


def connections(page: Any) -> str:
    page.get_by_role("link", name="Connections").click()
    page.locator('[data-label="Sent /s"]', has_text="KiB").first.wait_for()
    return str(page.locator("main").inner_text())


def options(page: Any) -> str:
    page.get_by_role("link", name="Broker").click()
    page.get_by_role("rowheader", name="max_attempts", exact=True).wait_for()
    page.get_by_role("slider", name="Dead letters, the last hour, at a time").wait_for()
    return str(page.locator("main").inner_text())


# fmt: off
QUESTIONS: dict[str, tuple[Callable[[Any], str], str, str]] = {
    "What is wrong now, and what helps?": (
        trouble, r"smtp of emails has 1,840 messages that nothing takes.*Start its workers", "overview"),
    "Which consumer is slow, and since when?": (slow, r"1,840.*19 m 20 s.*18 m 20 s ago", "consumers"),
    "Which messages does nothing take?": (detached, r"smtp.*emails.*nothing", ""),
    "Which message comes again and again?": (again, r"Message 504", ""),
    "Why did this message die?": (letters, r"no such customer: 4714.*ledger/book\.py", "letters"),
    "Did order 17 arrive?": (searched, r"1 message found.*order-10017.*acked", "search"),
    "What will happen to this message?": (
        will, r"warehouse.*waits for its time.*last failure: disk-full: OSError: No space left", ""),
    "When did it begin?": (hour, r"Oldest unacked", "topic"),
    "Which client is that, and how is it stopped?": (connections, r"billing-7f7.*orders as billing.*Close", "connections"),
    "Which setting holds, where does it come from, which token may what?": (
        options, r"max_attempts\s+5\s+--max-attempts", "broker"),
}
# fmt: on
"""How the page answers each of docs/operations.md, a pattern of the answer, and the name of the picture, if there is one."""


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_page_answers(broker: BrokerProcess, visit: Visit, question: str, tmp_path: Path) -> None:
    ask, answer, picture = QUESTIONS[question]
    scheme = "dark" if picture == "topic" else "light"
    page = visit("about:blank", VIEWPORT, origin=broker.http, color_scheme=scheme, timezone_id="UTC")
    Scene(broker).show(page)
    page.goto(broker.http)
    page.locator(".trow").first.wait_for()
    said = ask(page)
    assert re.search(answer, said, re.DOTALL), said
    if picture:
        page.locator(".toast").first.wait_for(state="detached")
        file = Path(os.environ.get("TOYMQ_PICTURES") or tmp_path) / f"dashboard-{picture}.png"
        file.write_bytes(taken(page))
        assert file.stat().st_size < BYTES_MAX


def test_the_documentation_has_these_questions_and_pictures() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    table = text.partition("## Ten questions")[2].partition("## ")[0]
    assert [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines() if "? |" in line] == list(QUESTIONS)
    pictures = {f"dashboard-{picture}.png" for _, _, picture in QUESTIONS.values() if picture}
    assert {path.name for path in (ROOT / "docs" / "images").glob("dashboard-*.png")} == pictures
    assert set(re.findall(r"\(images/(dashboard-[\w-]+\.png)\)", text + (ROOT / "docs" / "http.md").read_text())) == pictures
