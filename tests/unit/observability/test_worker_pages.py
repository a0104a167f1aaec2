"""/metrics and /healthz of a worker process."""

import re

from prometheus_client.parser import text_string_to_metric_families

from tests.support.broker_process import ROOT
from toymq_py.observability.worker_pages import CONNECTED, TABLE, worker_pages

FIGURES = {"add": {metric.name: float(n) for n, metric in enumerate(TABLE)}, 'say "hi"': {metric.name: 0.0 for metric in TABLE}}


async def test_every_figure_is_shown_by_function_in_the_format_of_prometheus() -> None:
    pages = worker_pages(lambda: FIGURES, lambda: None, lambda: True)
    status, content_type, body = await pages["/metrics"]("")
    assert (status, content_type) == ("200 OK", "text/plain; version=0.0.4; charset=utf-8")
    families = {family.name: family for family in text_string_to_metric_families(body.decode())}
    assert len(families) == len(TABLE) + 1
    for n, metric in enumerate(TABLE):
        family = families[f"toymq_{metric.name}".removesuffix("_total")]
        assert (family.type, family.documentation) == (metric.kind.value, f"{metric.help} Unit: {metric.unit}.")
        assert {sample.labels["job"]: sample.value for sample in family.samples} == {"add": n, 'say "hi"': 0}
    assert [sample.value for sample in families[f"toymq_{CONNECTED.name}"].samples] == [1]


def test_the_page_of_workers_names_each_of_them() -> None:
    table = (ROOT / "docs" / "workers.md").read_text().partition("## Health and metrics")[2].partition("\n## ")[0]
    documented = set(re.findall(r"`(toymq_worker_\w+)`", table))
    assert documented == {f"toymq_{metric.name}" for metric in (*TABLE, CONNECTED)}


async def test_health_says_what_is_wrong() -> None:
    problem: list[str | None] = [None, "the broker is not connected"]
    pages = worker_pages(dict, lambda: problem.pop(0), lambda: False)
    assert await pages["/healthz"]("") == ("200 OK", "text/plain; charset=utf-8", b"ok\n")
    status, _, body = await pages["/healthz"]("")
    assert (status, body) == ("503 Service Unavailable", b"the broker is not connected\n")
    assert b"toymq_worker_connected 0.0\n" in (await pages["/metrics"](""))[2]
