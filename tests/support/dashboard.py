"""The dashboard in a real Chromium: starts brokers and a browser, opens pages, and has steps that tests share. The fixtures
stand in tests/e2e/conftest.py."""

import contextlib
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.support.broker_process import BrokerProcess

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
WIDE, NARROW = {"width": 1280, "height": 800}, {"width": 390, "height": 844}

Start = Callable[..., BrokerProcess]
Visit = Callable[..., Any]


@contextlib.contextmanager
def launched() -> Iterator[Any]:
    """Launch a browser."""
    from playwright.sync_api import sync_playwright  # only there with its extra

    path = next(filter(None, map(shutil.which, CHROMIUM)))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextlib.contextmanager
def starting(data_dir: Path) -> Iterator[Start]:
    """Yield a function that starts brokers on one data directory, one after the other."""
    with contextlib.ExitStack() as running:

        def start(*options: str, http: str = "127.0.0.1:0") -> BrokerProcess:
            return running.enter_context(BrokerProcess(data_dir, "--http", http, *options))

        yield start


@contextlib.contextmanager
def visiting(browser: Any) -> Iterator[Visit]:
    """Yield a function that opens pages. A JavaScript error, a violation of the content security policy, or a request to
    another host fails the test."""
    contexts, complaints = [], []

    def visit(
        url: str, viewport: dict[str, int] = WIDE, broken: str = r"(?!)", clock: bool = False, origin: str = "", **options: Any
    ) -> Any:  # fmt: skip
        """Open a page. ``broken``: a pattern for errors that its console may show; ``clock``: the test moves the page's time;
        ``origin``: where the page will be."""
        context = browser.new_context(viewport=viewport, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        origin = (origin or url).split("#")[0].rstrip("/")

        def listen(said: Any) -> None:
            if said.type == "error" and not re.search(broken, said.text):
                complaints.append(said.text)

        def look(request: Any) -> None:
            if not request.url.startswith(origin):
                complaints.append(request.url)

        page.on("pageerror", lambda error: complaints.append(error.stack))
        page.on("console", listen)
        page.on("request", look)
        if clock:
            page.clock.install()
        page.goto(url)
        return page

    yield visit
    for context in contexts:
        context.close()
    assert complaints == [], complaints


def publish(broker: BrokerProcess, topic: str, payload: str | bytes, **headers: str) -> int:
    answer = httpx.post(f"{broker.http}v1/topics/{topic}/messages", content=payload, headers=headers)
    assert answer.status_code == 201, answer.text
    msg_id: int = answer.json()["id"]
    return msg_id


def dead_letters(broker: BrokerProcess, topic: str, *reasons: str) -> None:
    for reason in reasons:
        msg_id = publish(broker, topic, reason)
        path = f"{broker.http}v1/topics/{topic}/messages"
        assert httpx.get(path, params={"consumer": "billing", "wait_s": 5}).json()["messages"][0]["id"] == msg_id
        query = {"consumer": "billing", "dead": "true", "reason": reason}
        assert httpx.post(f"{path}/{msg_id}:nack", params=query).status_code == 204


def row(page: Any, name: str) -> Any:
    return page.get_by_role("row").filter(has=page.get_by_role("link", name=name, exact=True))


def toast(page: Any, text: str) -> None:
    page.locator(".toast", has_text=text).wait_for()


def answered(page: Any, label: str, name: str) -> None:
    """Answer a confirmation that asks to type a name: its button is disabled until the whole name is typed."""
    dialog = page.get_by_role("dialog")
    button = dialog.get_by_role("button", name=label, exact=True)
    assert button.is_disabled()
    dialog.get_by_role("textbox").fill(name[:-1])
    assert button.is_disabled()
    dialog.get_by_role("textbox").fill(name)
    button.click()


def told(page: Any, **changes: dict[str, Any]) -> None:
    """Change the data that a page gets, from its next load on: of consumers and topics by name, of the broker as ``stats``, of
    other requests as ``said``. So no test has to wait until something is slow."""
    changed = """(() => {
          const changes = CHANGES;
          const Real = window.EventSource;
          window.EventSource = class extends Real {
            addEventListener(name, call) {
              super.addEventListener(name, (event) => {
                if (!event.data) return call(event);
                const said = JSON.parse(event.data);
                for (const each of said.topics) Object.assign(each, changes[each.topic]);
                for (const each of said.topics.flatMap((topic) => topic.consumers)) Object.assign(each, changes[each.consumer]);
                Object.assign(said.stats, changes.stats);
                Object.assign(said, changes.said);
                call({ data: JSON.stringify(said) });
              });
            }
          };
        })()"""
    page.add_init_script(changed.replace("CHANGES", json.dumps(changes)))
