"""A broker with sample data for the pictures of the dashboard, and a browser that shows them in the same way on every machine.

Topics, consumers, messages, dead letters and connections are a real broker's, and so is every answer that the page gets. What
differs from run to run is replaced in the answers: times, ages, addresses, disk figures, and the last hour, which a broker that
was just started does not have.
"""

import contextlib
import json
import math
import random
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from tests.support.broker_process import BrokerProcess
from tests.support.dashboard import publish

NOW_MS = 1_795_867_200_000
"""2026-11-28, 12:00 UTC."""
SECOND, MINUTE, HOUR = 1000, 60_000, 3_600_000
STEPS = 360
"""Of ten seconds."""
VIEWPORT = {"width": 1280, "height": 784}
BEGAN = 250
"""The step of the hour in which the consumer of emails became slow."""

RATES = {"orders": 74.0, "emails": 21.0, "invoices": 9.0, "reports": 1.2}
CONSUMERS = {
    "orders": {"billing": 12, "shipping": 3, "audit": 31}, "emails": {"smtp": 1840}, "invoices": {"ledger": 2},
    "reports": {"warehouse": 96},
}  # fmt: skip
"""How many messages wait for each consumer of a topic."""
UNKNOWN = (
    "ValueError", "no such customer: {n}",
    'File "ledger/book.py", line 41, in book\n  raise ValueError(f"no such customer: {number}")',
)  # fmt: skip
SILENT = (
    "TimeoutError", "bank.example did not answer within 10 s",
    'File "ledger/bank.py", line 17, in ask\n  raise TimeoutError(text)',
)  # fmt: skip
FAILURES = [UNKNOWN, UNKNOWN, SILENT, UNKNOWN]


@contextlib.contextmanager
def story(directory: Path) -> Iterator[BrokerProcess]:
    """Start a broker with sample topics: orders that are billed, mails whose consumer is gone, invoices of which some became
    dead letters."""
    options = ("--max-attempts", "5", "--private-webhooks", "--max-topics", "200")
    with BrokerProcess(directory / "d", "--http", "127.0.0.1:0", *options) as broker, contextlib.ExitStack() as open_:
        for topic in RATES:
            _fill(broker, topic, 2000 if topic == "emails" else 600)
        for topic, consumers in CONSUMERS.items():
            end = httpx.get(f"{broker.http}v1/topics/{topic}").json()["next_id"]
            for consumer, behind in consumers.items():
                path = f"{broker.http}v1/topics/{topic}/consumers/{consumer}"
                httpx.put(path, json={"seek": str(end - behind)}).raise_for_status()
        httpx.patch(f"{broker.http}v1/topics/orders", json={"visibility": 60_000, "retain_acked_for": 7 * 24 * HOUR})
        _letters(broker)
        _fail(broker)
        hook = {"topic": "receipts", "url": "http://127.0.0.1:9/", "secret": "a-secret-of-the-hook"}
        answer = httpx.put(f"{broker.http}v1/webhooks/crm", json=hook)
        assert answer.status_code == 201, answer.text
        alert = {"when": "lag", "topic": ">", "threshold": 1000, "for": "0s", "url": "http://127.0.0.1:9/"}
        httpx.put(f"{broker.http}v1/alerts/behind", json=alert).raise_for_status()
        for topic, consumer in (("orders", "billing"), ("orders", "shipping"), ("orders", "audit"), ("reports", "warehouse")):
            wire = open_.enter_context(broker.connect())
            assert wire.ask(f"HELLO 1 name={consumer}-7f{len(consumer)}\n".encode()).startswith(b"HELLO")
            assert wire.ask(f"SUB {topic} {consumer} window=8\n".encode()).startswith(b"OK")
        yield broker


def _fill(broker: BrokerProcess, topic: str, messages: int) -> None:
    chance = random.Random(topic)

    def line(number: int) -> dict[str, Any]:
        payload = {"number": number, "items": chance.randint(1, 9), "total": f"{chance.randint(300, 9900) / 100:.2f}"}
        headers = {"shop": chance.choice(["berlin", "lyon", "porto"])}
        return {"key": f"{topic.removesuffix('s')}-{number}", "headers": headers, "payload": json.dumps(payload)}

    lines = [line(10_000 + n) for n in range(messages)]
    answer = httpx.post(
        f"{broker.http}v1/topics/{topic}/messages:batch", content="".join(json.dumps(line) + "\n" for line in lines),
        headers={"content-type": "application/x-ndjson"}, timeout=60,
    )  # fmt: skip
    assert answer.status_code == 201, answer.text


def _take(broker: BrokerProcess, topic: str, consumer: str) -> int:
    path = f"{broker.http}v1/topics/{topic}/messages"
    found = httpx.get(path, params={"consumer": consumer, "wait_s": 5}).json()["messages"]
    return int(found[0]["id"])


def _letters(broker: BrokerProcess) -> None:
    for n, (error, text, traceback) in enumerate(FAILURES):
        publish(broker, "invoices", f'{{"number": {10_600 + n}}}', **{"idempotency-key": f"invoice-{10_600 + n}"})
        msg_id = _take(broker, "invoices", "ledger")
        failure = {"error": {"type": error, "text": text.format(n=4711 + n), "traceback": traceback}}
        query = {"consumer": "ledger", "dead": "true"}
        answer = httpx.post(f"{broker.http}v1/topics/invoices/messages/{msg_id}:nack", params=query, json=failure)
        assert answer.status_code == 204, answer.text


def _fail(broker: BrokerProcess) -> None:
    """Let the next message of the topic reports fail, so that it waits for another attempt."""
    msg_id = _take(broker, "reports", "warehouse")
    failure = {"reason": "disk-full", "error": {"type": "OSError", "text": "No space left on device"}}
    path = f"{broker.http}v1/topics/reports/messages/{msg_id}:nack"
    assert httpx.post(path, params={"consumer": "warehouse", "delay_s": 3600}, json=failure).status_code == 204


class Scene:
    """The data that a page is to get from a broker. ``show`` prepares a page before it is loaded."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self._port = urlsplit(broker.http).port
        self._readings = count()
        self._ends: dict[str, int] = {}
        self._snapshot = self._told()

    def _told(self) -> dict[str, Any]:
        with httpx.stream("GET", f"{self.broker.http}v1/events", timeout=20) as stream:
            line = next(line for line in stream.iter_lines() if line.startswith("data: "))
        told: dict[str, Any] = json.loads(line.removeprefix("data: "))
        told["now_ms"] = NOW_MS
        told["stats"] |= {
            "uptime_s": 6 * 86_400 + 5 * 3600, "fsync_p99_s": 0.0021, "rss_bytes": 84 << 20, "loop_lag_s": 0.0004,
            "disk_free_bytes": 71 << 30, "redeliver_total": 43, "connections": 4, "fsync_total": 9000, "time_ms": NOW_MS,
        }  # fmt: skip
        for topic in told["topics"]:
            self._ends[topic["topic"]] = topic["next_id"]
            topic["bytes"] += topic["next_id"] * 400
            for consumer in topic["consumers"]:
                consumer |= self._consumer(topic["topic"], consumer)
        return told

    def _consumer(self, topic: str, consumer: dict[str, Any]) -> dict[str, Any]:
        changes: dict[str, Any] = {"oldest_unacked_at_ms": NOW_MS - 2 * SECOND if consumer["backlog"] else None}
        if consumer["consumer"] == "smtp":
            ago = (STEPS - BEGAN) * 10 * SECOND
            changes |= {"oldest_unacked_at_ms": NOW_MS - ago - MINUTE, "slow_since_ms": NOW_MS - ago}
        elif consumer["consumer"] == "warehouse":
            changes |= {"attempts_max": 7, "attempts_max_id": 600 - 96, "redelivered_total": 31}
            changes |= {"oldest_unacked_at_ms": NOW_MS - 40 * SECOND}
        return changes

    def _history(self, topic: str | None, steps: int) -> dict[str, list[float | None]]:
        chance = random.Random(str(topic))
        rate = RATES.get(topic, 0.0) if topic else sum(RATES.values())
        published = [round(rate * (1 + 0.16 * math.sin(n / 13) + chance.uniform(-0.07, 0.07)), 2) for n in range(STEPS)]
        consumers = len(CONSUMERS.get(topic, ())) if topic else 2
        acked = [value * consumers for value in published]
        backlog: list[float] = [chance.randint(2, 31) for _ in range(STEPS)]
        oldest = [chance.uniform(0.2, 2.5) for _ in range(STEPS)]
        if topic in ("emails", None):
            for n in range(BEGAN, STEPS):
                acked[n] -= published[n] * RATES["emails"] / rate
                backlog[n] = round((n - BEGAN + 1) * 1840 / (STEPS - BEGAN))
                oldest[n] = (n - BEGAN + 1) * 10.0 + 60
        died = (120, 190, 240, 301) if topic in ("invoices", "invoices.dlq", None) else ()
        letters = [float(sum(n >= step for step in died)) for n in range(STEPS)]
        columns = {
            "published": published, "acked": [round(value, 2) for value in acked], "backlog": backlog, "oldest_s": oldest,
            "letters": letters,
        }  # fmt: skip
        if topic is None:
            columns["delivered"] = [round(value * 1.02, 2) for value in columns["acked"]]
            columns["redelivered"] = [chance.choice([0, 0, 0, 0.1, 0.4]) for _ in range(STEPS)]
        return {name: list(values[-steps:]) for name, values in columns.items()}

    # -- what the page asks for

    def _answer(self, path: str, query: str, body: Any) -> Any:
        if path.endswith("/history"):
            steps = min(int(re.findall(r"last_s=(\d+)", query)[0]) // 10, STEPS)
            frame = {"step_s": 10, "last_ms": NOW_MS}
            if path != "/v1/history":
                return frame | {"topic": path.split("/")[3], "kept": True, "numbers": self._history(path.split("/")[3], steps)}
            topics = {name: self._history(name, steps) for name in self._ends}
            return frame | {"part": None, "broker": self._history(None, steps), "topics_left_out": 0, "topics": topics}
        if path == "/v1/connections":
            return self._connections(body)
        if path == "/v1/broker":
            body |= {"pid": 1, "python": "3.11.7", "compiled": True}
            body["disk"] |= {"free_bytes": 71 << 30, "log_bytes": 1 << 30}
            body["memory"] |= {"resident_bytes": 84 << 20, "max_bytes": 2 << 30}
            for option in body["options"]:
                option["value"] = self._plain(option["value"])
            for limit in body["limits"]:
                limit["used"] = {"held_bytes": 0, "connections": 5}.get(limit["limit"], limit["used"])
        if path == "/v1/webhooks":
            for hook in body["webhooks"]:
                hook |= {"failure": None, "url": "https://crm.example/hooks/receipts"}
        if path == "/v1/alerts":
            for alert in body["alerts"]:
                alert |= {"failure": None, "url": "https://chat.example/alerts"}
        return self._at_their_times(body)

    def _connections(self, body: dict[str, Any]) -> dict[str, Any]:
        reading = next(self._readings)
        shown = [each for each in body["connections"] if each["name"] or each["own"]]
        shown.sort(key=lambda each: (each["own"], each["name"] or ""))
        for n, each in enumerate(shown):
            each["connection"] = f"{each['protocol']}-{n + 3}"
            each["address"] = f"10.0.3.{n + 11}:{50_112 + 31 * n}"
            each["since_ms"] = NOW_MS - (n + 1) * 7 * HOUR
            each |= {"received_bytes": 9000 + reading * 2 * 410 * (n + 1), "sent_bytes": 90_000 + reading * 2 * 5300 * (n + 1)}
        return body | {"connections": shown, "open": len(shown)}

    def _at_their_times(self, found: Any) -> Any:
        """Give messages evenly spaced times, the newest two seconds ago."""
        if isinstance(found, list):
            return [self._at_their_times(each) for each in found]
        if not isinstance(found, dict):
            return found
        if "time_ms" in found and found.get("topic") in self._ends:
            step = 9 * MINUTE if found["topic"].endswith(".dlq") else 1400
            found["time_ms"] = NOW_MS - 2 * SECOND - (self._ends[found["topic"]] - 1 - found["id"]) * step
            for name in ("toymq-failed-at", "toymq-first-delivered", "toymq-last-delivered"):
                if name in found.get("headers", {}):
                    found["headers"][name] = str(found["time_ms"] - 5)
        return {name: self._at_their_times(value) for name, value in found.items()}

    def _plain(self, text: str | None) -> str | None:
        """Remove from an option's value what depends on this machine and this run."""
        if text is None:
            return None
        return re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:7800", re.sub(r"^/.*/d$", "/var/lib/toymq", text))

    def show(self, page: Any) -> None:
        """Set a page's time, its first snapshot and its answers."""
        page.clock.install()
        page.clock.set_fixed_time(datetime.fromtimestamp(NOW_MS / 1000, UTC))
        page.add_init_script(ONE_SNAPSHOT.replace("TOLD", json.dumps(self._snapshot)))

        def answer(route: Any) -> None:
            asked = urlsplit(route.request.url)
            real = route.fetch()
            if "json" not in real.headers.get("content-type", ""):
                route.fulfill(response=real)
                return
            route.fulfill(response=real, json=self._answer(asked.path, asked.query, real.json()))

        page.route("**/v1/**", answer)


ONE_SNAPSHOT = """(() => {
  const told = TOLD;
  window.EventSource = class {
    addEventListener(name, call) { if (name === "snapshot") setTimeout(() => call({ data: JSON.stringify(told) })); }
    close() {}
  };
  const later = window.setTimeout;
  window.setTimeout = (call, ms, ...rest) => (ms === 8000 ? 0 : later(call, ms, ...rest)); // silence is no trouble here
  let reading = 0;
  performance.now = () => (reading += 2000);
})()"""
