"""The jobs of ``toymq-bench worker``: they count, and the last one prints the count."""

import json
import os
import signal

import pytest

from toymq_bench.noop_jobs import Meter


def test_the_last_job_prints_the_figures_and_ends_the_process(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *arguments: ended.append(arguments))
    meter = Meter(20)
    for _ in range(19):
        meter.job()
    assert (capsys.readouterr().out, ended) == ("", [])
    meter.job()
    found = json.loads(capsys.readouterr().out)
    assert found["jobs"] == 18, "the first tenth warms up"
    assert ended == [(os.getpid(), signal.SIGTERM)]
