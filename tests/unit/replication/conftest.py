"""What tests of nodes, and of a leader's links to its followers, begin with."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.link_rig import QUICK, LeaderRig
from tests.support.node_rig import Run, Scenario, simulate


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    def run_scenario(scenario: Scenario, **options: int) -> None:
        simulate(scenario, tmp_path, monkeypatch, **options)

    return run_scenario


@pytest.fixture
async def leader(tmp_path: Path) -> AsyncIterator[LeaderRig]:
    async with LeaderRig(tmp_path / "leader", options=QUICK).serving() as rig:
        yield rig
