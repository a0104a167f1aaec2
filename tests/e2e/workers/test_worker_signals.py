"""``toymq worker`` at a terminal: Ctrl-C once, and twice."""

import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.broker_process import COMMAND, TIMEOUT_S, BrokerProcess, environment
from toymq import sync

APP = """
import asyncio
import sys
import toymq

app = toymq.App({url!r})

@app.worker("jobs")
async def work() -> None:
    sys.stderr.write("it runs\\n")
    await asyncio.sleep(3600)
"""


def until(process: "subprocess.Popen[str]", text: str) -> None:
    assert process.stderr is not None
    assert any(text in line for line in process.stderr), f"{text!r} was expected"


@pytest.mark.parametrize("several", [False, True])
def test_ctrl_c_waits_for_jobs_and_the_second_one_does_not(tmp_path: Path, several: bool) -> None:
    """Found: the second Ctrl-C had no effect."""
    options = ["--processes", "2"] if several else []
    with BrokerProcess(tmp_path / "d") as broker, sync.connect(broker.url) as mq:
        (tmp_path / "shop_signals.py").write_text(APP.format(url=broker.url))
        command = [*COMMAND, "worker", "shop_signals:app", "--shutdown-timeout", "1h", *options]
        with subprocess.Popen(command, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True) as process:
            mq.pub("jobs", b"{}")
            until(process, "it runs")
            process.send_signal(signal.SIGINT)
            until(process, "no more jobs are taken")
            process.send_signal(signal.SIGINT)
            assert process.wait(TIMEOUT_S) == (0 if several else 1)
        (message,) = mq.pull("jobs", "workers", wait=10)
        # One of several processes may be given the job between the death of its holder and its own.
        assert message.attempt in ((2, 3) if several else (2,))


LEFT = """
import asyncio
import sys
import time
import toymq

app = toymq.App({url!r})

@app.worker("jobs")
async def work() -> None:
    sys.stderr.write("it runs\\n")
    {does}

async def stubborn() -> None:
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass
"""


@pytest.mark.parametrize(
    "does",
    [
        "await stubborn()",
        "asyncio.ensure_future(stubborn()); await asyncio.sleep(3600)",
        "await asyncio.to_thread(time.sleep, 3600)",
    ],
)
def test_a_worker_ends_without_what_does_not_let_itself_be_cancelled(tmp_path: Path, does: str) -> None:
    """Found: the worker waited for a job that cannot be cancelled, and ignored every further signal."""
    with BrokerProcess(tmp_path / "d") as broker, sync.connect(broker.url) as mq:
        (tmp_path / "shop_stubborn.py").write_text(LEFT.format(url=broker.url, does=does))
        command = [*COMMAND, "worker", "shop_stubborn:app", "--shutdown-timeout", "0.1s"]
        with subprocess.Popen(command, cwd=tmp_path, env=environment(), stderr=subprocess.PIPE, text=True) as process:
            mq.pub("jobs", b"{}")
            until(process, "it runs")
            process.terminate()
            try:
                assert process.wait(TIMEOUT_S) == 1
            finally:
                process.kill()
        (message,) = mq.pull("jobs", "workers", wait=10)
        assert message.attempt == 2
