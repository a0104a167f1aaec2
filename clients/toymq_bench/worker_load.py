"""``toymq worker`` under load: the CPU that a job costs its worker process in addition to its function."""

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from toymq.broker_process import TOYMQ
from toymq_bench import noop_jobs
from toymq_bench.broker import Broker
from toymq_bench.errors import BenchError
from toymq_bench.progress import phase
from toymq_bench.traffic import delete, names

PATIENCE_S = 600


@contextmanager
def _bound(pid: int, cores: Sequence[int]) -> Iterator[None]:
    """Bind a process to some CPU cores for the time of the context; without cores do nothing."""
    before = os.sched_getaffinity(pid)
    os.sched_setaffinity(pid, cores or before)
    try:
        yield
    finally:
        os.sched_setaffinity(pid, before)


def measure(broker: Broker, kind: str, count: int, concurrency: int, label: str) -> dict[str, float]:
    """Measure one worker process, on one core, that does ``count`` stored jobs of a function that does nothing. The broker has
    the other cores.

    Raises: BenchError, ToymqError, OSError.
    """
    (topic,) = topics = names(1)
    with broker.client() as mq, phase(f"{label}: publish", 1):
        for _ in mq.pub_many(topic, (b'{"number":%d}' % number for number in range(count))):
            pass
    *others, core = sorted(os.sched_getaffinity(0))
    variables = {
        "TOYMQ_URL": f"toymq://{broker.host}:{broker.port}", noop_jobs.TOPIC: topic, noop_jobs.KIND: kind,
        noop_jobs.COUNT: str(count), noop_jobs.CORE: str(core),
    }  # fmt: skip
    command = [*TOYMQ, "worker", "toymq_bench.noop_jobs:app", "--concurrency", str(concurrency), "--log-level", "warning"]
    try:
        with phase(label, 1), _bound(broker.pid, others):
            cpu_s = broker.cpu_s()
            done = subprocess.run(
                command, env={**os.environ, **variables}, stdout=subprocess.PIPE, timeout=PATIENCE_S, check=False
            )
            cpu_s = broker.cpu_s() - cpu_s
    finally:
        delete(broker, topics)
    if done.returncode != 0:
        raise BenchError(f"toymq worker has exited with {done.returncode}, see above")
    found = json.loads(done.stdout)
    return {
        "jobs_per_s": found["jobs"] / found["span_s"],
        "worker_cpu_us": found["cpu_s"] * 1e6 / found["jobs"],
        "worker_cores": found["cpu_s"] / found["span_s"],
        "broker_cpu_us": cpu_s * 1e6 / count,
    }
