"""``toymq worker --metrics``: health and figures of a real process."""

import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.broker_process import COMMAND, TIMEOUT_S, BrokerProcess, environment
from toymq import sync
from toymq_py.cli.worker import of_process

APP = """
import asyncio
import toymq

app = toymq.App({url!r})

@app.worker("jobs", concurrency=3, retries=0)
async def work(kind: str) -> None:
    if kind == "hang":
        await asyncio.sleep(3600)
    if kind == "fail":
        raise ValueError("no")
"""


@contextmanager
def working(folder: Path, url: str, *options: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """Yield the process, and the address of its pages."""
    (folder / "shop_metrics.py").write_text(APP.format(url=url))
    command = [*COMMAND, "worker", "shop_metrics:app", "--metrics", "127.0.0.1:0", "--shutdown-timeout", "0s", *options]
    with subprocess.Popen(command, cwd=folder, env=environment(), stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if (found := re.search(r"metrics and health at (\S+)$", line)) is not None:
                    break
            assert found is not None
            yield process, found[1]
        finally:
            process.kill()


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def until(url: str, text: str) -> str:
    """Read a page until it contains the text. Returns: the page."""
    said = ""
    for _ in range(3_000):
        if text in (said := get(url)[1]):
            return said
    raise AssertionError(f"{text!r} was expected: {said}")


def test_figures_and_health_of_a_process(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "d") as broker, working(tmp_path, broker.url) as (_, address):
        until(f"{address}healthz", "ok")
        with sync.connect(broker.url) as mq:
            for kind in ("quick", "quick", "fail", "hang"):
                mq.pub_value("jobs", {"kind": kind})
        until(f"{address}metrics", 'toymq_worker_jobs_running{job="shop_metrics.work"} 1.0')
        until(f"{address}metrics", 'toymq_worker_jobs_failed_total{job="shop_metrics.work"} 1.0')
        said = until(f"{address}metrics", 'toymq_worker_jobs_done_total{job="shop_metrics.work"} 2.0')
        assert 'toymq_worker_jobs_dead_total{job="shop_metrics.work"} 1.0' in said
        assert 'toymq_worker_begun_total{job="shop_metrics.work"} 4.0' in said
        assert 'toymq_worker_concurrency{job="shop_metrics.work"} 3.0' in said
        assert "toymq_worker_connected 1.0" in said
        oldest = re.search(r'^toymq_worker_oldest_running_seconds{job="shop_metrics.work"} (\S+)$', said, re.MULTILINE)
        assert oldest is not None
        assert 0 < float(oldest[1]) < TIMEOUT_S
        assert get(f"{address}other") == (404, "there is /healthz and /metrics\n")
        broker.kill()
        until(f"{address}healthz", "the broker is not connected")
        assert get(f"{address}healthz")[0] == 503
        broker.start()
        until(f"{address}healthz", "ok")


def test_a_broker_that_is_away_is_told_from_the_first_moment(tmp_path: Path) -> None:
    with working(tmp_path, "toymq://127.0.0.1:1") as (process, address):
        assert get(f"{address}healthz") == (503, "no worker runs: it starts, or stops\n")
        assert "toymq_worker_connected 0.0" in get(f"{address}metrics")[1]
        process.terminate()
        assert process.wait(TIMEOUT_S) == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--metrics", "here"], "'here' is not an address: write host:port"),
        (["--metrics", "127.0.0.1:0", "--processes", "2"], "--metrics with port 0 does not go with --processes"),
        (["--metrics", "192.0.2.1:9"], "--metrics: cannot listen on 192.0.2.1:9: "),
    ],
)
def test_an_address_that_does_not_do_is_one_line(tmp_path: Path, options: list[str], says: str) -> None:
    (tmp_path / "shop_metrics.py").write_text(APP.format(url="toymq://127.0.0.1:1"))
    code = f"import os, sys; os.chdir({str(tmp_path)!r}); from toymq_py.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "worker", "shop_metrics:app", *options],
        env=environment(), capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert (done.returncode, says in done.stderr) == (2, True), done.stderr


def test_each_of_several_processes_has_a_port_of_its_own() -> None:
    assert [of_process("127.0.0.1:9000", number)[1] for number in (0, 1)] == ["127.0.0.1:9000", "127.0.0.1:9001"]
    assert of_process("[::1]:9000", 1) == ["--metrics", "[::1]:9001"]
    assert of_process(None, 1) == []
