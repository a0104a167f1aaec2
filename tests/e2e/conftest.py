"""The real broker on the test's own loop, and an asyncio client of it. Tests that need a process have a ``broker`` fixture of
their own."""

import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import toymq
from tests.support.cluster_groups import Groups, two_groups
from tests.support.dashboard import Start, Visit, launched, starting, visiting
from tests.support.in_process import InProcess, serving
from toymq import Client


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[InProcess]:
    async with serving(tmp_path / "d") as served:
        yield served


@pytest.fixture
async def mq(broker: InProcess) -> AsyncIterator[Client]:
    async with toymq.connect(f"toymq://127.0.0.1:{broker.port}") as client:
        yield client


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A Chromium, for the dashboard."""
    with launched() as browser:
        yield browser


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Yield a function that starts brokers of one data directory with a dashboard. They end after the pages that look at
    them."""
    with starting(tmp_path / "d") as start:
        yield start


@pytest.fixture
def visit(browser: Any, start: Start) -> Iterator[Visit]:
    """Open a page of a dashboard."""
    with visiting(browser) as visit:
        yield visit


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Groups]:
    """Two groups of a cluster, a and b, of a node each."""
    with two_groups(tmp_path_factory.mktemp("groups")) as rigs:
        yield rigs


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB; its test requires tmpfs."""
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "toymq-test", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)
