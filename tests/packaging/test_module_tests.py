"""Each module has a test file of its name, so that a reader finds it."""

from tests.support.broker_process import ROOT

ELSEWHERE = {
    "chaos/toymq_chaos/churn.py": "tests/e2e/test_chaos.py",
    "chaos/toymq_chaos/experiment.py": "tests/e2e/test_chaos.py",
    "chaos/toymq_chaos/supervisor.py": "tests/e2e/test_chaos_harness.py",
    "clients/toymq_bench/bench.py": "tests/bench/test_cli.py",
    "clients/toymq_bench/peers/toymq.py": "tests/bench/peers/test_peer.py",
    "clients/toymq_bench/pings.py": "tests/bench/test_pinger.py",
    "clients/toymq_spark/record_sources.py": "tests/spark/test_spark.py",
    "clients/toymq_spark/sink.py": "tests/spark/test_spark.py",
    "clients/toymqctl/top/command.py": "tests/e2e/test_top.py",
}
"""Tested only with what is around them: a process, a cluster or a terminal."""
DECLARATIONS = {
    "chaos/toymq_chaos/site/sitecustomize.py", "clients/toymq_spark/datasource.py", "toymq_py/consumer/message_counts.py",
    "toymq_py/protocol/commands.py", "toymq_py/replication/agreement.py", "toymq_py/replication/key_values.py",
    "toymq_py/storage/commit/listener.py", "toymq_py/topic/services.py", "toymq_py/topic/tracer.py",
    "toymq_py/version.py",
}  # fmt: skip
"""Interfaces, and values without a rule."""


def test_each_module_has_a_test_of_its_name() -> None:
    """The lists of exceptions may not grow: write the test instead."""
    names = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    modules = [path for part in ("toymq_py", "clients", "chaos") for path in (ROOT / part).rglob("*.py")]
    missing = {
        str(path.relative_to(ROOT))
        for path in modules
        if not path.stem.startswith("__") and not {f"test_{path.stem}", f"test_{path.parent.name}_{path.stem}"} & names
    }
    assert missing == DECLARATIONS | ELSEWHERE.keys()


def test_what_is_tested_elsewhere_is() -> None:
    assert [path for path in ELSEWHERE.values() if not (ROOT / path).is_file()] == []
