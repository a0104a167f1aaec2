"""Health probes and counters of the gateway."""

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


async def test_health(rig: HttpRig) -> None:
    health = (await rig.ask("GET", "/healthz")).json()
    assert health["status"] == "ok"
    assert health["uptime_seconds"] >= 0
    assert (await rig.ask("GET", "/readyz")).json() == {"status": "ready", "reasons": []}
    assert (await rig.ask("HEAD", "/readyz")).status_code == 200


async def test_a_leader_whose_lease_is_over_says_that_it_does_not_lead(rig: HttpRig) -> None:
    """Found: a leader cut off from etcd and its followers, which can commit nothing, answered 200, so a load balancer kept its
    clients there."""
    assert rig.gateway is not None
    assert (await rig.ask("GET", "/leader")).json() == {"role": "leader"}
    rig.broker.permit.extend(rig.gateway.clock.monotonic())
    for path in ("/leader", "/readyz"):
        answer = await rig.ask("GET", path)
        assert answer.status_code == 503
        assert "its lease is over" in answer.text
    rig.broker.permit.extend(rig.gateway.clock.monotonic() + 60)
    assert (await rig.ask("GET", "/leader")).status_code == 200


async def test_stats(rig: HttpRig) -> None:
    await rig.publish("t", "x")
    stats = (await rig.ask("GET", "/v1/stats")).json()
    assert (stats["publish_total"], stats["fsync"]) == (1, "always")
