"""One broker for all tests that need just any broker."""

import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

import pytest

from tests.support.broker_process import COMMAND, BrokerProcess, environment
from tests.support.forked_broker import ForkedBroker, can_fork
from toymq import broker_process


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory: Path = tmp_path_factory.mktemp("bench")
    with BrokerProcess(directory / "data") as running:
        yield running


@pytest.fixture
def attach(broker: BrokerProcess) -> list[str]:
    """Return options for a short measurement of that broker."""
    return ["--connect", f"127.0.0.1:{broker.port}", "--pid", str(broker.pid), "--runs", "1"]


@pytest.fixture(autouse=True)
def _brokers_are_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the brokers that the benchmark starts, too, except those of another commit's source."""
    executes = broker_process.BrokerProcess._popen

    def popen(
        process: broker_process.BrokerProcess, command: list[str], given: Mapping[str, str]
    ) -> "subprocess.Popen[str]":
        count, ours = len(COMMAND), {**given, "PYTHONPATH": environment()["PYTHONPATH"]}
        if command[:count] != COMMAND or given.get("PYTHONPATH") != os.environ.get("PYTHONPATH") or not can_fork(ours):
            return executes(process, command, given)
        return cast("subprocess.Popen[str]", ForkedBroker(command[count:], ours, process._log.fileno()))

    monkeypatch.setattr(broker_process.BrokerProcess, "_popen", popen)
