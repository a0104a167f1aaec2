"""The application whose workers ``toymq-bench worker`` measures: a function that does nothing but count.

``toymq worker`` runs it in a separate process. Environment variables say what is measured; the last job prints the figures and
ends the process.
"""

import json
import os
import signal
import sys
import threading
import time
from typing import Any

import toymq

TOPIC, KIND, COUNT = "BENCH_TOPIC", "BENCH_KIND", "BENCH_COUNT"
CORE = "BENCH_CORE"
WARM_UP = 0.1
"""The part of the jobs that is done before the measurement begins: imports, the first connection, a cold cache."""

app = toymq.App()


class Meter:
    """Counts jobs, from any thread; after the last job it prints the figures."""

    def __init__(self, count: int) -> None:
        self._count, self._first = count, max(1, int(count * WARM_UP))
        self._done = 0
        self._lock = threading.Lock()
        self._began = self._cpu_s = 0.0

    def job(self) -> None:
        with self._lock:
            self._done += 1
            done = self._done
        if done == self._first:
            self._began, self._cpu_s = time.perf_counter(), time.process_time()
        elif done == self._count:
            self._report()

    def _report(self) -> None:
        span_s, cpu_s = time.perf_counter() - self._began, time.process_time() - self._cpu_s
        jobs = self._count - self._first
        sys.stdout.write(json.dumps({"jobs": jobs, "span_s": span_s, "cpu_s": cpu_s}))
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGTERM)


def define(environment: "os._Environ[str]") -> None:
    """Make the worker that the environment variables ask for."""
    meter = Meter(int(environment[COUNT]))
    if CORE in environment:
        os.sched_setaffinity(0, {int(environment[CORE])})

    async def coroutine(number: int) -> None:
        meter.job()

    def plain(number: int) -> None:
        meter.job()

    function: Any = coroutine if environment[KIND] == "async" else plain
    app.worker(environment[TOPIC])(function)


if TOPIC in os.environ:
    define(os.environ)
