"""Jobs in processes of their own: results, failures, time limits, deaths, leases, and the end of their worker."""

import asyncio
import importlib
import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import ModuleType

import pytest

import toymq
from tests.support import process_jobs
from tests.support.broker_process import TIMEOUT_S, BrokerProcess, environment
from tests.support.in_process import InProcess
from tests.support.worker_rig import until, working
from toymq import App, Client
from toymq.broker_process import TOYMQ
from toymq.workers.job_messages import Place
from toymq.workers.job_process import JobProcess, Lifeline
from toymq_py.errors import ConfigError


async def letters(mq: Client, topic: str) -> list[dict[str, str]]:
    return [one.headers for one in await mq.pull(f"{topic}.dlq", "test", 100, wait=10)]


def pids(path: Path) -> list[int]:
    """Return the ids of a job's process, and of the program that the job has started."""
    return [int(word) for word in path.read_text().split()]


def lives(pid: int) -> bool:
    """Whether a process lives; a zombie, whose parent has yet to reap it, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # it ended before the file was opened, or behind that
        return False


linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")


async def test_a_result_comes_back_and_processes_are_kept(app: App, broker: InProcess) -> None:
    older = App(f"toymq://127.0.0.1:{broker.port}")
    """Of a caller whose function is of another version."""

    @older.worker("sums")
    def before(first: str, second: int) -> int:
        raise AssertionError("it is called by nothing")

    add = app.worker("sums", executor="process", concurrency=2)(process_jobs.add)
    where = app.worker("where", executor="process")(process_jobs.where)
    odd = app.worker("odd", executor="process")(process_jobs.odd)
    async with working(app):
        await until(lambda: app.runners != [])
        assert await asyncio.gather(*(add.call(number, 1) for number in range(6))) == [1, 2, 3, 4, 5, 6]
        found = [await where.call() for _ in range(3)]
        assert (len(set(found)), found[0] != os.getpid()) == (1, True)
        with pytest.raises(toymq.JobFailed, match="is of type object, which JSON does not have"):
            await odd.call()
        async with older:
            with pytest.raises(toymq.JobFailed, match=r"first of .*add is a whole number, not 'x'"):
                await before.call("x", 1)


async def test_a_long_text_of_an_exception_is_cut_in_the_log(app: App, caplog: pytest.LogCaptureFixture) -> None:
    fails = app.worker("t", executor="process", retries=0)(process_jobs.fail)
    async with working(app):
        await until(lambda: app.runners != [])
        await fails.send("money" * 20_000)
        await until(lambda: "is a dead letter: ValueError: no money" in caplog.text)
    assert "characters left out" in caplog.text
    assert len(caplog.text) < 20_000


async def test_an_exception_is_that_of_its_process_in_the_dead_letter_and_for_dead_on(app: App, mq: Client) -> None:
    fails = app.worker("t", executor="process", retries=3, dead_on=(LookupError, RuntimeError, ValueError))(process_jobs.fail)
    app.worker("u", executor="process", retries=0)(process_jobs.coroutine)
    async with working(app):
        await until(lambda: app.runners != [])
        with pytest.raises(toymq.JobFailed, match="ValueError: no money"):
            await fails.call("money")
        for kind in ("two texts", "exit"):
            await fails.send(kind)
        await mq.pub("u", b"{}")
        await until(lambda: sum(one.counts.dead for one in app.runners) == 4)
        assert [one.counts.failed for one in app.runners] == [3, 1], "none is tried again"
    value, two, left = await letters(mq, "t")
    assert (value["toymq-error-type"], value["toymq-error"]) == ("ValueError", "no money")
    first, place, line, *_ = json.loads(value["toymq-traceback"]).splitlines()
    assert (first, "process_jobs.py" in place) == ("Traceback (most recent call last):", True), "none of our own lines"
    assert line == '    raise ValueError(f"no {kind}")'
    assert two["toymq-error-type"].endswith("process_jobs.TwoTexts")
    assert two["toymq-error"] == "one and another"
    assert (left["toymq-error-type"], "called sys.exit('enough')" in left["toymq-error"]) == ("RuntimeError", True)
    (letter,) = await letters(mq, "u")
    assert "returned coroutine and did none of its work" in letter["toymq-error"]


@linux
async def test_a_job_over_its_time_has_its_process_killed_and_what_that_started(app: App, mq: Client, tmp_path: Path) -> None:
    app.worker("t", executor="process", retries=0, timeout="300ms")(process_jobs.wait)
    where = app.worker("u", executor="process")(process_jobs.where)
    async with working(app):
        await until(lambda: app.runners != [])
        await mq.pub_json("t", {"folder": str(tmp_path), "name": "a"})
        assert await where.call() > 0, "others are not held up"
        await until(lambda: app.runners[0].counts.dead == 1)
        await until(lambda: not any(map(lives, pids(tmp_path / "a"))))
        (tmp_path / "go").touch()
        await mq.pub_json("t", {"folder": str(tmp_path), "name": "b"})
        await until(lambda: app.runners[0].counts.done == 1)
    (letter,) = await letters(mq, "t")
    assert letter["toymq-error-type"] == "TimeoutError"
    assert letter["toymq-error"].endswith("process_jobs.wait took longer than 0.3 s: its process was killed")


@linux
async def test_a_process_that_dies_fails_its_job_alone(app: App, mq: Client, tmp_path: Path) -> None:
    app.worker("t", executor="process", retries=0, concurrency=2)(process_jobs.end)
    app.worker("u", executor="process", concurrency=2)(process_jobs.wait)
    async with working(app):
        await until(lambda: app.runners != [])
        await mq.pub_json("u", {"folder": str(tmp_path), "name": "a"})
        await until((tmp_path / "a").exists)
        for how in ("segv", "exit", "forked"):
            await mq.pub_json("t", {"how": how})
        await until(lambda: app.runners[0].counts.dead == 3)
        (tmp_path / "go").touch()
        await until(lambda: app.runners[1].counts.done == 1)
        assert app.runners[1].counts.failed == 0
    found = await letters(mq, "t")
    assert {one["toymq-error-type"] for one in found} == {"toymq.errors.JobProcessEnded"}
    texts = sorted(one["toymq-error"].partition("process_jobs.end ")[2] for one in found)
    assert texts == ["exited with 3", "exited with 3", "was ended by SIGSEGV"]


@linux
async def test_a_killed_process_has_not_the_last_word(app: App, mq: Client, tmp_path: Path) -> None:
    """A job whose process was killed, for lack of memory for example, is tried again in another process."""
    app.worker("t", executor="process", retries=2, backoff="1ms")(process_jobs.wait)
    async with working(app):
        await until(lambda: app.runners != [])
        await mq.pub_json("t", {"folder": str(tmp_path), "name": "a"})
        await until((tmp_path / "a").exists)
        first, program = pids(tmp_path / "a")
        (tmp_path / "a").unlink()
        os.kill(first, signal.SIGKILL)
        await until((tmp_path / "a").exists)
        await until(lambda: not lives(program))
        (tmp_path / "go").touch()
        await until(lambda: app.runners[0].counts.done == 1)
        assert (app.runners[0].counts.failed, app.runners[0].counts.begun) == (1, 1)


@linux
async def test_a_process_that_was_killed_without_a_job_fails_none(app: App) -> None:
    where = app.worker("t", executor="process", retries=0)(process_jobs.where)
    async with working(app):
        await until(lambda: app.runners != [])
        first = await where.call()
        ended = os.pidfd_open(first)  # /proc calls it a zombie while some of its threads still end
        os.kill(first, signal.SIGKILL)
        await until(lambda: bool(select.select([ended], [], [], 0)[0]))
        os.close(ended)
        assert await where.call() != first


async def test_no_job_is_taken_before_its_process_is_ready(
    app: App, mq: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found: a worker leased a message while its process was still starting, and ran it at the end of the start even when it
    had lost the lease."""
    start, starts, second, go_on = JobProcess.start, count(), threading.Event(), threading.Event()

    def slow_from_the_second_on(process: JobProcess) -> None:
        if next(starts) > 0:
            second.set()
            assert go_on.wait(20)
        start(process)

    monkeypatch.setattr(JobProcess, "start", slow_from_the_second_on)
    app.worker("t", executor="process", concurrency=2)(process_jobs.wait)
    async with working(app):
        await until(lambda: app.runners != [])
        for name in ("a", "b"):
            await mq.pub_json("t", {"folder": str(tmp_path), "name": name})
        await until(second.is_set)
        assert [message.json()["name"] for message in app.runners[0]._running] == ["a"]
        go_on.set()
        (tmp_path / "go").touch()
        await until(lambda: app.runners[0].counts.done == 2)


@linux
async def test_the_lease_of_a_job_is_renewed_while_its_process_works(app: App, mq: Client, tmp_path: Path) -> None:
    app.worker("t", executor="process", visibility=0.3)(process_jobs.wait)
    async with working(app):
        await until(lambda: app.runners != [])
        await mq.pub_json("t", {"folder": str(tmp_path), "name": "a"})
        await until((tmp_path / "a").exists)
        await mq.pub("later", b"x", delay=1.2)  # four times the lease
        assert len(await mq.pull("later", "test", wait=20)) == 1
        assert await mq.pull("t", "workers") == [], "its lease was over"
        (tmp_path / "go").touch()
        await until(lambda: app.runners[0].counts.done == 1)


@linux
async def test_at_the_end_a_running_process_may_finish_and_signals_do_not_reach_it(
    app: App, mq: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app.worker("t", executor="process")(process_jobs.wait)

    async def go_on() -> None:
        await until(lambda: "no more jobs are taken" in caplog.text)
        for number in (signal.SIGTERM, signal.SIGINT):  # a service manager signals all processes of a service
            os.kill(pids(tmp_path / "a")[0], number)
        (tmp_path / "go").touch()

    with caplog.at_level(logging.INFO, logger="toymq.workers"):
        async with asyncio.TaskGroup() as tasks, working(app) as running:
            await until(lambda: app.runners != [])
            await mq.pub_json("t", {"folder": str(tmp_path), "name": "a"})
            await until((tmp_path / "a").exists)
            tasks.create_task(go_on())
    assert running.result() is True
    assert (tmp_path / "a-done").exists()
    assert (await mq.describe("t"))["consumers"][0]["inflight"] == 0
    await until(lambda: not lives(pids(tmp_path / "a")[0]))


@linux
async def test_a_process_that_does_not_end_in_time_is_killed_and_its_job_goes_on_elsewhere(
    app: App, mq: Client, tmp_path: Path
) -> None:
    app.worker("t", executor="process")(process_jobs.wait)
    async with working(app, shutdown=0.01) as running:
        await until(lambda: app.runners != [])
        await mq.pub_json("t", {"folder": str(tmp_path), "name": "a"})
        await until((tmp_path / "a").exists)
    assert running.result() is True, "in contrast to a thread"
    (message,) = await mq.pull("t", "workers", wait=10)
    assert message.attempt == 2
    await until(lambda: not any(map(lives, pids(tmp_path / "a"))))


async def test_what_a_job_logs_is_logged_by_its_worker_with_the_message(
    app: App, mq: Client, caplog: pytest.LogCaptureFixture
) -> None:
    app.worker("t", executor="process")(process_jobs.tell)
    async with working(app):
        await until(lambda: app.runners != [])
        await mq.pub("t", b"a letter")
        await until(lambda: app.runners[0].counts.done == 1)
    first, second = [vars(one) for one in caplog.records if one.name == "shop"]
    assert (first["msg"], first["message_id"], first["attempt"], first["size"]) == ("a letter arrives", 0, 1, 8)
    assert first["odd"].startswith("<object object at")
    assert first["process"] != os.getpid()
    assert "ValueError: no look" in second["exc_text"]


async def test_a_function_that_another_process_does_not_find_ends_the_workers(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    def elsewhere() -> None: ...

    elsewhere.__module__, elsewhere.__qualname__ = process_jobs.__name__, "nowhere"
    app.worker("t", executor="process")(elsewhere)
    with pytest.raises(ConfigError, match=r"cannot call .*nowhere: .*process_jobs has no nowhere when another process imports"):
        await app.run(asyncio.Event())


ENDS = """
import multiprocessing, os, pathlib, signal

marker = pathlib.Path(__file__).with_suffix(".began")
if multiprocessing.parent_process() is not None and not marker.exists():
    marker.touch()
    {how}

def work() -> None: ...
"""


@pytest.fixture
def ending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """Return a module that ends the first other process that imports it."""
    (tmp_path / "shop_ending.py").write_text(ENDS.format(how=request.param))
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("shop_ending")
    del sys.modules["shop_ending"]


@pytest.mark.parametrize("ending", ["os.kill(os.getpid(), signal.SIGKILL)"], indirect=True)
async def test_a_process_that_is_killed_at_its_start_does_not_end_the_workers(
    app: App, mq: Client, ending: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    """Found: the workers ended, and the jobs of other functions were given back."""
    app.worker("t", executor="process", retries=0)(ending.work)
    async with working(app):
        await until(lambda: app.runners != [])
        await mq.pub("t", b"{}")
        await until(lambda: app.runners[0].counts.done == 1)
    assert "the process of shop_ending.work was ended by SIGKILL" in caplog.text
    assert "the next job starts another one" in caplog.text


@linux
@pytest.mark.parametrize("ending", ["os.kill(os.getpid(), signal.SIGINT), os.kill(os.getpid(), signal.SIGTERM)"], indirect=True)
async def test_signals_do_not_reach_a_process_that_starts(app: App, mq: Client, ending: ModuleType) -> None:
    """Found: Ctrl-C while a job process started printed a traceback."""
    app.worker("t", executor="process", retries=0)(ending.work)
    async with working(app):
        await until(lambda: app.runners != [])
        await mq.pub("t", b"{}")
        await until(lambda: app.runners[0].counts.done == 1)


def test_a_process_is_born_with_its_signals_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: Ctrl-C while a process imported the interpreter's own modules printed a traceback, and SIGTERM ended it."""
    masks: list[set[int]] = []

    def note(_: object) -> None:
        masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        raise RuntimeError("enough")

    monkeypatch.setattr("multiprocessing.context.SpawnProcess.start", note)
    with pytest.raises(ConfigError, match="enough"):
        JobProcess(Place("shop", "work", "t"), Lifeline()).start()
    assert {signal.SIGINT, signal.SIGTERM} <= masks[0]
    assert not {signal.SIGINT, signal.SIGTERM} & signal.pthread_sigmask(signal.SIG_BLOCK, ())


@pytest.mark.parametrize("ending", ["os._exit(4)"], indirect=True)
async def test_a_process_that_exits_at_its_start_ends_the_workers(app: App, ending: ModuleType) -> None:
    app.worker("t", executor="process")(ending.work)
    with pytest.raises(ConfigError, match=r"the process of shop_ending.work exited with 4 before it could call it: see above"):
        await app.run(asyncio.Event())


APP = """
import toymq
from tests.support import process_jobs

app = toymq.App()
app.worker("t", executor="process")(process_jobs.wait)
"""


@linux
def test_no_process_stays_behind_a_worker_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "shop_processes.py").write_text(APP)
    with BrokerProcess(tmp_path / "d") as broker, toymq.sync.connect(broker.url) as mq:
        mq.pub_json("t", {"folder": str(tmp_path), "name": "a"})
        path = os.pathsep.join([str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])])
        variables = {**environment(), "TOYMQ_URL": broker.url, "PYTHONPATH": path}
        with subprocess.Popen([*TOYMQ, "worker", "shop_processes:app"], env=variables, cwd=tmp_path) as worker:
            asyncio.run(until((tmp_path / "a").exists))
            worker.kill()
            worker.wait(TIMEOUT_S)
        asyncio.run(until(lambda: not any(map(lives, pids(tmp_path / "a")))))
        (message,) = mq.pull("t", "workers", wait=10)
        assert message.attempt == 2
