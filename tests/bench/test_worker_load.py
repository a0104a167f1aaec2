"""The load of ``toymq worker``."""

import subprocess

import pytest

from tests.support.broker_process import BrokerProcess
from toymq_bench import worker_load
from toymq_bench.broker import Broker
from toymq_bench.errors import BenchError


def test_a_worker_that_fails_is_no_measurement(broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 2, b"")  # says why on stderr
    )
    with pytest.raises(BenchError, match="toymq worker has exited with 2, see above"):
        worker_load.measure(Broker("127.0.0.1", broker.port, broker.pid), "async", 10, 1, "label")
    with Broker("127.0.0.1", broker.port, broker.pid).client() as mq:
        assert mq.topics() == [], "it cleans up"
