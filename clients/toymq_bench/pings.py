"""PING round trips, measured by another process while a load runs."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from toymq_bench.broker import Broker
from toymq_bench.errors import WrongReply
from toymq_bench.latency import summary_ms


@contextmanager
def pings(broker: Broker, seconds: float) -> Iterator[dict[str, float]]:
    """Run ``pinger`` for ``seconds``. Yields: metrics, empty until the context ends. Raises: WrongReply, OSError."""
    metrics: dict[str, float] = {}
    command = [sys.executable, "-m", "toymq_bench.pinger", broker.host, str(broker.port), str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as pinger:
        yield metrics
        printed = pinger.communicate(timeout=60)[0]
    if pinger.returncode:
        raise WrongReply("the connection that sent PINGs was lost")
    metrics |= summary_ms({int(us): count for us, count in json.loads(printed).items()}, "ping")
