"""A small ``make bench-replicated``: a pair beside a single node, and a resync."""

import pytest
from click.testing import CliRunner

from tests.cluster_bench.__main__ import SHOWN, main
from tests.support.requirements import require

pytestmark = [require("etcd", "proc"), pytest.mark.torture]


def test_a_pair_is_measured_beside_a_single_node_and_a_resync_under_load() -> None:
    done = CliRunner().invoke(main, ["--runs", "1", "--seconds", "0.3", "--resync-mb", "2"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    for title in SHOWN.values():
        assert done.output.count(f"\n{title}  ") == 2, "once for each load"
    assert done.output.count("follower's CPU / leader's: ") == 2
    assert "resync of 2 MB at " in done.output
