"""Benchmarks of other brokers: recorded protocols, which brokers are skipped, and the tables. None has to be installed."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from toymq_bench.cli import main
from toymq_bench.errors import BenchError
from toymq_bench.peers import rabbitmq, runner, strace
from toymq_bench.result import Session


def test_those_that_are_not_installed_are_skipped_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PATH is empty: only the toymq beside the interpreter is found."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)  # the default of --data-dir: each server runs in a directory of its own below it
    monkeypatch.setattr(rabbitmq.RabbitMQ, "program", str(tmp_path / "rabbitmq-server"))
    kept = tmp_path / "peers.json"
    short = ["--runs", "1", "--seconds", "300ms", "--warmup", "10ms", "--shape", "16x16", "--shape", "end to end"]
    picture = tmp_path / "peers.svg"
    files = ["--json", str(kept), "--plot", str(picture)]
    done = CliRunner().invoke(main, ["peers", *short, *files])
    assert done.exit_code == 0, done.output
    for name in ("Redis Streams (redis-server)", "NATS JetStream (nats-server)", "beanstalkd (beanstalkd)", "RabbitMQ ("):
        assert f"skipped, not installed: {name}" in done.stdout
    assert "toymq: fdatasync before each reply (group commit)" in done.stdout
    assert [result.scenario for result in Session.load(kept).results] == ["16 x 16", "end to end"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["peers.json", "peers.svg"]
    assert "<!-- end to end -->" in picture.read_text(), "matplotlib writes the texts of a picture beside their outlines"


def test_an_unknown_shape_and_a_missing_strace_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BenchError, match="unknown shape '2x2': write one of 1x1"):
        runner.chosen(["2x2"])
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BenchError, match="strace"), strace.SyncCounter([1], tmp_path):
        pass
