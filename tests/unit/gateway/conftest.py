"""The gateway's application over a broker on a simulated disk."""

import random
from collections.abc import AsyncIterator

import pytest

from tests.support.broker_rig import DIR
from tests.support.http_rig import HttpRig, gateway
from tests.support.sim_disk import SimDisk


@pytest.fixture
def fs() -> SimDisk:
    return SimDisk(random.Random(1))


@pytest.fixture
async def rig(fs: SimDisk) -> AsyncIterator[HttpRig]:
    async with gateway(DIR, fs=fs) as rig:
        yield rig
