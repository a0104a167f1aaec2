"""``--metrics``: the page over HTTP, of a real broker. Contract: clients.md, "Operations"."""

import asyncio
import http.client
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.broker_process import BrokerProcess, run
from tests.support.in_process import InProcess, serving
from toymq_py.net.host_names import AllowedHosts
from toymq_py.observability import metrics_server as listener_module
from toymq_py.observability.metrics_server import WAITING_MAX, MetricsServer, broker_pages
from toymq_py.server import Server


def ask(port: int, path: str = "/metrics", method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
    finally:
        connection.close()


def values(body: bytes) -> dict[str, float]:
    """Return the series without labels."""
    families = text_string_to_metric_families(body.decode())
    return {sample.name: sample.value for family in families for sample in family.samples if not sample.labels}


@asynccontextmanager
async def with_metrics(data_dir: Path) -> AsyncIterator[tuple[InProcess, int]]:
    async with serving(data_dir) as served:
        bound = Server.bind("127.0.0.1", 0)
        port = bound[0].getsockname()[1]
        metrics = MetricsServer(broker_pages(served.broker), asyncio.get_running_loop(), bound, AllowedHosts(["toymq"]))
        metrics.start()
        try:
            yield served, port
        finally:
            metrics.stop()


async def test_the_page_is_the_state_of_the_moment(tmp_path: Path) -> None:
    async with with_metrics(tmp_path / "d") as (served, port):
        wire = await served.connect()
        for n in range(3):
            assert await wire.ask(b"PUB t - 4\nbody\n") == b"OK %d" % n
            status, headers, body = await asyncio.to_thread(ask, port)
            assert status == 200
            assert headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
            assert values(body)["toymq_publish_total"] == n + 1
        _, headers, body = await asyncio.to_thread(ask, port, Accept="application/openmetrics-text; version=1.0.0")
        assert headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
        assert body.endswith(b"# EOF\n")


async def test_a_page_that_another_sites_name_leads_here_reads_no_metrics(tmp_path: Path) -> None:
    async with with_metrics(tmp_path / "d") as (_, port):
        hosts = ("evil.example", f"evil.example:{port}", "toymq:9464", "127.0.0.1:1", "localhost")
        statuses = [(await asyncio.to_thread(ask, port, Host=host))[0] for host in hosts]
    assert statuses == [403, 403, 200, 200, 200]


async def test_head_answers_without_a_body(tmp_path: Path) -> None:
    async with with_metrics(tmp_path / "d") as (_, port):
        status, headers, body = await asyncio.to_thread(ask, port, method="HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["content-length"]) > 1000


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/", 404), ("GET", "/metrics/x", 404), ("POST", "/metrics", 405)]
)
async def test_nothing_else_is_there(tmp_path: Path, method: str, path: str, status: int) -> None:
    async with with_metrics(tmp_path / "d") as (_, port):
        assert (await asyncio.to_thread(ask, port, path, method))[0] == status


async def test_connections_that_say_nothing_take_no_more_than_their_room(tmp_path: Path) -> None:
    async with with_metrics(tmp_path / "d") as (_, port):
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(WAITING_MAX + 3)]
        for connection in idle[:3]:
            assert await asyncio.to_thread(connection.recv, 1) == b"", "it gave way"
        assert (await asyncio.to_thread(ask, port))[0] == 200
        for connection in idle:
            connection.close()


async def test_a_scrape_that_takes_too_long_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled = asyncio.Event()

    async def stuck(_broker: object, *, accept: str) -> tuple[bytes, str]:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return b"", ""

    monkeypatch.setattr(listener_module, "render", stuck)
    monkeypatch.setattr(listener_module, "REQUEST_TIMEOUT_S", 0.01)
    async with with_metrics(tmp_path / "d") as (_, port):
        assert (await asyncio.to_thread(ask, port))[0] == 503
        await asyncio.wait_for(cancelled.wait(), 10)


def test_serve_has_it_on_an_address_of_its_own(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "d", "--metrics", "127.0.0.1:0") as broker:
        found = re.search(r" http://127\.0\.0\.1:(\d+)/metrics ready,", broker.ready_line)
        assert found is not None, broker.ready_line
        with broker.connect() as wire:
            assert wire.ask(b"PUB t - 4\nbody\n") == b"OK 0"
        status, _, body = ask(int(found[1]))
        assert (status, values(body)["toymq_publish_total"]) == (200, 1)
        broker.terminate()
        code, log = broker.ended()
        assert code == 0
        assert [line for line in log.splitlines() if " toymq_py.audit: " not in line] == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--metrics", "0.0.0.0:9464"], "toymq: --metrics: 0.0.0.0 can be reached from other machines"),
        (["--metrics", "[::]:9464", "--auth-file", "tokens.toml"], "this listener asks for no token"),
        (["--metrics", "192.0.2.1:1", "--insecure-public"], "toymq: --metrics: cannot listen on 192.0.2.1:1: "),
        (["--metrics", "9464"], "'9464' is not an address"),
    ],
)
def test_an_address_that_cannot_be_is_one_line(tmp_path: Path, options: list[str], said: str) -> None:
    done = run("serve", "--data-dir", str(tmp_path / "d"), "--listen", "127.0.0.1:0", *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr
