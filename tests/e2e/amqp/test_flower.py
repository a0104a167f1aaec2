"""Celery's monitoring, unchanged: its events, and Flower, which shows them. Skipped by name where Flower is not installed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.broker_process import ROOT, TIMEOUT_S, BrokerProcess
from tests.support.framework_rig import WorkerProcess, until
from tests.support.requirements import require
from toymq.sockets import reserved_port

pytestmark = require("flower")


@pytest.fixture(scope="module")
def worker(broker_of_the_file: BrokerProcess, said_of_the_file: Path) -> Iterator[WorkerProcess]:
    from tests.support.celery_tasks import worker

    with worker(broker_of_the_file, said_of_the_file, "-E") as process:
        yield process


@pytest.fixture(scope="module")
def app(broker_of_the_file: BrokerProcess) -> Iterator[Any]:
    from tests.support.celery_tasks import make_app

    made = make_app(f"{broker_of_the_file.amqp}//")
    yield made
    made.pool.force_close_all()


def test_events_and_remote_control(worker: WorkerProcess, app: Any) -> None:
    seen: list[tuple[str, str]] = []
    sent: list[str] = []

    def heard(event: dict[str, Any]) -> None:
        seen.append((event["type"], event.get("uuid", "")))
        if not sent:
            sent.append(app.tasks["add"].delay(1).id)
        elif ("task-succeeded", sent[0]) in seen:
            receiver.should_stop = True

    until(lambda: app.control.ping(timeout=1, limit=1))  # one that comes before the worker is lost
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": heard})
        receiver.capture(limit=None, timeout=TIMEOUT_S, wakeup=True)
    of_the_task = [kind for kind, task in seen if task == sent[0]]
    assert of_the_task == ["task-received", "task-started", "task-succeeded"]
    ((_, stats),) = app.control.inspect(timeout=TIMEOUT_S, limit=1).stats().items()
    assert stats["broker"]["transport"] == "amqp"


def test_flower_shows_workers_and_tasks(
    request: pytest.FixtureRequest, worker: WorkerProcess, app: Any, broker_of_the_file: BrokerProcess
) -> None:
    assert "celery -A shop flower" in (ROOT / "docs" / "celery.md").read_text()
    port = reserved_port(request)
    url = f"http://127.0.0.1:{port}/api"

    def found(path: str) -> Any:
        try:
            return httpx.get(f"{url}/{path}", timeout=TIMEOUT_S).json()
        except (httpx.TransportError, ValueError):
            return {}

    with WorkerProcess(
        "celery", "-A", "tests.support.celery_tasks", "flower", f"--port={port}", "--address=127.0.0.1",
        broker_url=f"{broker_of_the_file.amqp}//", FLOWER_UNAUTHENTICATED_API="true",
    ):  # fmt: skip
        until(lambda: found("workers"))  # it has heard of the worker, and so hears events
        task = app.tasks["add"].delay(2).id
        until(lambda: found(f"task/info/{task}").get("state") == "SUCCESS")
