"""A worker of ``serve --workers`` that hangs keeps its own topics from clients, and nothing else. ADR 0273, 0274."""

import json
import os
import signal
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result

from tests.support.ctl import refused
from tests.support.worker_processes import publish, serving, topic_of
from toymq_py.heartbeat import standstill
from toymq_py.placement import worker_of
from toymqctl.cli import main as toymqctl

HERE, THERE = topic_of(0, 2), topic_of(1, 2)
PARTED = next(name for name in "abcdefgh" if [worker_of(f"{name}#{number}", 2) for number in range(2)] == [0, 1])
"""A partitioned topic with a partition at each."""


def test_a_worker_that_stands_still_is_named_and_holds_up_nothing_but_its_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    """Found: no error named the worker that hangs. Each command for it held up all later commands of its client for 20 s, each
    time anew; behind a publish under way they waited as long as the worker hung."""
    with serving(tmp_path / "data", 2, "--http", "127.0.0.1:0") as workers:
        workers.ready(2)
        pid, messages = workers.pids[1], f"{workers.http(0)}/v1/topics/{{}}/messages"
        problem = standstill(pid)

        def ctl(*arguments: str) -> Result:
            return CliRunner().invoke(toymqctl, ["--url", f"127.0.0.1:{workers.ports[0]}", *arguments])

        with workers.wire(0) as open_before, workers.wire(0) as under_way:
            assert [publish(open_before, topic, "x") for topic in (HERE, THERE)] == [b"OK 0"] * 2
            assert publish(under_way, THERE, "x") == b"OK 1"
            assert under_way.ask(f"CREATE {PARTED} partitions=2\n".encode()) == b"OK 0"
            assert [publish(under_way, f"{PARTED}#{number}", "x") for number in range(2)] == [b"OK 0"] * 2
            assert open_before.ask(b"CLUSTER\n").startswith(b"JSON")
            assert json.loads(open_before.line())["pids"] == [workers.pids[0], pid]
            os.kill(pid, signal.SIGSTOP)
            try:
                under_way.send(f"PUB {THERE} - 1\nx\nPUB {HERE} - 1\nx\n".encode())
                assert under_way.at_end(), "that it was stored is unknown, as when the worker dies"
                workers.hears(f"worker 1 {problem}")
                for number in (2, 3):
                    assert publish(open_before, THERE, "x") == f"ERR PLACEMENT_UNKNOWN worker 1 {problem}".encode()
                    assert publish(open_before, HERE, "x") == b"OK %d" % number
                answer = httpx.post(messages.format(THERE), content=b"x", timeout=60)
                assert (answer.status_code, answer.json()["code"]) == (503, "PLACEMENT_UNKNOWN")
                assert answer.json()["detail"] == f"worker 1 {problem}"
                assert httpx.post(messages.format(HERE), content=b"x", timeout=60).status_code == 201
                assert open_before.ask(b"STATS partial=1\n").startswith(b"JSON")
                assert json.loads(open_before.line())["away"] == [{"place": "worker 1", "why": problem}]
                for name, *rest in (["describe"], ["consumers"], ["purge", "--yes"], ["pull", "c", "--wait", "1h"]):
                    refused(ctl(name, THERE, *rest), 1, f"worker 1 has the topic {THERE}, and {problem}")
                monkeypatch.setattr("toymqctl.sub.ANSWERS_S", 1.0)
                ended = ctl("sub", THERE, "--timeout", "1s")
                assert ended.exit_code == 1
                awaited = f"the OK of SUB {THERE} toymqctl; worker 1 has the topic {THERE}, and {problem}"
                assert ended.stderr.endswith(f"toymqctl: no answer within 1 s: waited for {awaited}\n")
                listed, figures, read = ctl("topics", "--json"), ctl("stats", "--json"), ctl("tail", PARTED)
                assert [result.exit_code for result in (listed, figures, read)] == [1] * 3, "they have a part"
                assert {json.loads(line)["topic"] for line in listed.stdout.splitlines()} == {HERE, f"{PARTED}#0"}
                assert listed.stderr == f"toymqctl: not listed: topics of worker 1, which {problem}\n"
                assert json.loads(figures.stdout)["away"] == [{"place": "worker 1", "why": problem}]
                assert figures.stderr == f"toymqctl: without worker 1, which {problem}\n"
                assert read.stdout == f"{PARTED}#0 0\tx\n"
                assert read.stderr == f"toymqctl: {PARTED}#1 is left out: worker 1 has the topic {PARTED}#1, and {problem}\n"
            finally:
                os.kill(pid, signal.SIGCONT)
            workers.hears("worker 1 answers again")
            assert publish(open_before, THERE, "x") == b"OK 3", "the one under way was stored, and none that was refused"
            assert httpx.post(messages.format(THERE), content=b"x", timeout=60).json()["id"] == 4
        assert workers.stop() == 0
