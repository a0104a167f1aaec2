"""The pytest fixtures of the product, as its users get them: pytest in a directory of their own."""

import os
import re
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.broker_process import ROOT, TIMEOUT_S, environment

pytest_plugins = ["pytester"]


def run(pytester: pytest.Pytester, program: str) -> pytest.RunResult:
    pytester.makepyfile(test_orders=program)
    return pytester.runpytest_subprocess("-W", "error", "-p", "no:asyncio")


def test_the_example_of_the_guide(pytester: pytest.Pytester) -> None:
    ((kind, program),) = re.findall(r"^```(\w+)\n(.*?)^```", (ROOT / "docs" / "testing-your-app.md").read_text(), re.M | re.S)
    assert kind == "python"
    run(pytester, program).assert_outcomes(passed=2)


def test_each_test_has_a_broker_of_its_own_and_none_stays(pytester: pytest.Pytester) -> None:
    run(
        pytester,
        """
        import os
        import pytest

        pids = []

        @pytest.mark.parametrize("number", range(2))
        def test_one(number, toymq_broker, toymq_sync_client):
            assert toymq_sync_client.topics() == []
            toymq_sync_client.pub("t", b"x")
            pids.append(toymq_broker._process.pid)

        def test_none_is_left():
            assert len(set(pids)) == 2
            for pid in pids:
                with pytest.raises(ProcessLookupError):
                    os.kill(pid, 0)
        """,
    ).assert_outcomes(passed=3)


def test_a_broker_can_be_stopped_killed_and_asked_for_other_options(pytester: pytest.Pytester) -> None:
    run(
        pytester,
        """
        import pytest
        from toymq import ConnectFailed, sync
        from toymq.testing import BrokerUnderTest

        def test_gone_and_back(toymq_broker):
            url = toymq_broker.url
            toymq_broker.stop()
            with pytest.raises(ConnectFailed):
                sync.connect(url)
            toymq_broker.start()
            assert toymq_broker.url == url
            sync.connect(url).close()
            toymq_broker.kill()
            toymq_broker.kill()

        def test_options(tmp_path):
            broker = BrokerUnderTest(tmp_path / "data", "--max-payload", "10")
            broker.start()
            with sync.connect(broker.url) as mq, pytest.raises(Exception, match="at most 10"):
                mq.pub("t", b"more than ten bytes")
            broker.kill()

        def test_it_says_why_it_does_not_start(tmp_path):
            broker = BrokerUnderTest(tmp_path / "data", "--max-payload", "much")
            with pytest.raises(RuntimeError, match="much"):
                broker.start()
        """,
    ).assert_outcomes(passed=3)


KILLED = """
import sys, time
from toymq.testing import BrokerUnderTest
broker = BrokerUnderTest("data", "--workers", sys.argv[1])
broker.start()
print(broker.pid, flush=True)
time.sleep(3600)
"""


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="the end of a process that is no child is seen by a pidfd")
@pytest.mark.parametrize("workers", ["1", "2"])
def test_no_broker_outlives_tests_that_are_killed(tmp_path: Path, workers: str) -> None:
    """Found: the broker ran on, as a child of init."""
    command = [sys.executable, "-c", KILLED, workers]
    with subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, cwd=tmp_path) as tests:
        assert tests.stdout is not None
        pid = int(tests.stdout.readline())
        broker = os.pidfd_open(pid)
        tests.kill()
    try:
        ended, _, _ = select.select([broker], [], [], TIMEOUT_S)
        assert ended
    finally:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(broker, signal.SIGKILL)
        os.close(broker)
