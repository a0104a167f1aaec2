"""``toymq worker --metrics``: ``/metrics`` and ``/healthz`` of a process that runs an application's workers.

Contract: clients.md, "Operations"; ADR 0150. Knows no application: functions return the statistics by worker, and what is
wrong.
"""

from collections.abc import Callable, Mapping

from toymq_py.metrics import Kind, Metric
from toymq_py.observability.metrics_server import TEXT, Answer, Pages
from toymq_py.observability.prometheus import CONTENT_TYPE, encode_rows, heading

JOB = ("job",)
TABLE: tuple[Metric, ...] = (
    Metric("worker_jobs_done_total", Kind.COUNTER, "jobs", "Jobs whose function returned.", JOB),
    Metric("worker_jobs_failed_total", Kind.COUNTER, "attempts", "Attempts whose function raised.", JOB),
    Metric("worker_jobs_dead_total", Kind.COUNTER, "jobs", "Jobs that became dead letters.", JOB),
    Metric("worker_jobs_running", Kind.GAUGE, "jobs", "Jobs that run now.", JOB),
    Metric("worker_concurrency", Kind.GAUGE, "jobs", "Most jobs at once.", JOB),
    Metric("worker_oldest_running_seconds", Kind.GAUGE, "seconds", "How long the oldest of the running jobs runs.", JOB),
    Metric("worker_job_seconds_total", Kind.COUNTER, "seconds", "Time that ended attempts took, together.", JOB),
    Metric("worker_wait_seconds_total", Kind.COUNTER, "seconds",
           "Time from publish to begin of the jobs that were begun for the first time, together.", JOB),
    Metric("worker_begun_total", Kind.COUNTER, "jobs", "Jobs that were begun for the first time.", JOB),
    Metric("worker_last_wait_seconds", Kind.GAUGE, "seconds", "The same of the job that was begun last.", JOB),
)  # fmt: skip
CONNECTED = Metric("worker_connected", Kind.GAUGE, "0 or 1", "Whether the broker is connected.")

Figures = Mapping[str, Mapping[str, float]]
"""Numbers by the names of ``TABLE``, by the name of the function."""


def worker_pages(figures: Callable[[], Figures], problem: Callable[[], str | None], connected: Callable[[], bool]) -> Pages:
    """The pages of a worker process.

    Args:
        figures: returns the statistics of each worker; called at each scrape.
        problem: returns why no job can be taken now; None when all is well.
        connected: returns whether the broker is connected.
    """

    async def metrics(_accept: str) -> Answer:
        found = figures()
        pieces = []
        for metric in TABLE:
            pieces += [heading(metric), encode_rows(metric, [((name,), each[metric.name]) for name, each in found.items()])]
        pieces += [heading(CONNECTED), encode_rows(CONNECTED, [((), float(connected()))])]
        return "200 OK", CONTENT_TYPE, b"".join(pieces)

    async def health(_accept: str) -> Answer:
        wrong = problem()
        return ("200 OK", TEXT, b"ok\n") if wrong is None else ("503 Service Unavailable", TEXT, f"{wrong}\n".encode())

    return {"/metrics": metrics, "/healthz": health}
