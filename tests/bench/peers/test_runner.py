"""Load shapes for other brokers, and the table of results."""

from toymq_bench.peers import runner
from toymq_bench.result import Result


def test_a_peer_that_syncs_nothing_says_so_in_the_table() -> None:
    results = [
        Result("1 x 1", {"peer": name}, durability, [{"publishes_per_s": rate, "disk_limit_per_s": 3.0}])
        for name, durability, rate in (("a", "fsync before each reply", 1.0), ("b", "WEAK: no fsync", 2.0))
    ]
    shown = list(runner.lines(results, ["c (cd)"]))
    assert shown[:4] == ["messages/s    1 x 1", "a                 1", "b                 2", "(disk limit)      3"]
    assert shown[-3:] == ["a: fsync before each reply", "b: WEAK: no fsync", "skipped, not installed: c (cd)"]
