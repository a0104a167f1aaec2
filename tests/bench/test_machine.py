"""Facts of the machine beside every figure."""

from tests.support.bench_results import FACTS


def test_the_facts_are_told_and_name_no_host() -> None:
    assert FACTS.keys() == {"date", "cpu", "cores", "kernel", "file_system", "python", "build", "commit"}
    assert FACTS["file_system"] != "unknown"
