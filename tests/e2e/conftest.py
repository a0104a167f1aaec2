"""The real broker on the test's own loop, and an asyncio client of it. What needs a process has a ``broker`` of its own."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import toymq
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
