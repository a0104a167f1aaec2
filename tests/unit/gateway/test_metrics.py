"""The page of metrics on the gateway's address."""

import random
from collections.abc import AsyncIterator

import pytest

from tests.support.http_rig import HttpRig, gateway
from tests.support.sim_disk import SimDisk

DIR = "/data/d"


@pytest.fixture
async def rig() -> AsyncIterator[HttpRig]:
    async with gateway(DIR, fs=SimDisk(random.Random(1)), max_topics=200) as rig:
        yield rig


async def test_metrics_are_those_of_the_exporter(rig: HttpRig) -> None:
    await rig.publish("t", "x")
    answer = await rig.ask("GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "toymq_publish_total 1" in answer.text
    answer = await rig.ask("GET", "/metrics", headers={"accept": "application/openmetrics-text"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
