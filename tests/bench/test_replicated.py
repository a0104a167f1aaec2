"""``make bench-replicated``, in small: a pair beside a single node, and a resync."""

import pytest
from click.testing import CliRunner

from tests.cluster_bench import __main__ as command
from tests.support.requirements import require

pytestmark = require("etcd", "proc")


@pytest.mark.parametrize("loads", [1, pytest.param(2, marks=pytest.mark.torture)])
def test_a_pair_is_measured_beside_a_single_node_and_a_resync_under_load(loads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "LOADS", dict(list(command.LOADS.items())[-loads:]))
    done = CliRunner().invoke(command.main, ["--runs", "1", "--seconds", "0.3", "--resync-mb", "2"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    for title in command.SHOWN.values():
        assert done.output.count(f"\n{title}  ") == loads, "once for each load"
    assert done.output.count("follower's CPU / leader's: ") == loads
    assert "resync of 2 MB at " in done.output
