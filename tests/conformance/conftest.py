"""A gateway that speaks the dialect of the file: its ``DIALECT``."""

import random
from collections.abc import AsyncIterator

import pytest

from tests.support.broker_rig import DIR
from tests.support.http_rig import HttpRig, gateway, listening
from tests.support.sim_disk import SimDisk


@pytest.fixture
def fs() -> SimDisk:
    return SimDisk(random.Random(1))


@pytest.fixture
async def rig(fs: SimDisk, request: pytest.FixtureRequest) -> AsyncIterator[HttpRig]:
    async with gateway(DIR, fs=fs, dialects=[request.module.DIALECT]) as rig:
        yield rig


@pytest.fixture
async def listener(fs: SimDisk) -> AsyncIterator[HttpRig]:
    async with listening(DIR, fs=fs, dialects=["tinymq"]) as rig:
        yield rig
