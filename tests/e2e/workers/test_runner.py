"""Jobs over a real broker: done, retried, dead-lettered, cancelled, left to other workers."""

import asyncio
import json
import logging
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path

import pytest

import toymq
from tests.support import process_jobs
from tests.support.in_process import InProcess, serving
from tests.support.worker_rig import until, working
from toymq import App, Client
from toymq_py.errors import ModeConflict
from toymq_py.storage.record import iter_frames


class Skipped(BaseException): ...


async def letters(mq: Client, topic: str) -> list[tuple[bytes, dict[str, str]]]:
    """Return payloads and headers of the dead letters."""
    return [(one.payload, one.headers) for one in await mq.pull(f"{topic}.dlq", "test", 100, wait=10)]


async def test_jobs_are_done_and_acked(app: App, mq: Client) -> None:
    done: list[int] = []

    @app.worker("sums", concurrency=3)
    async def add(first: int, second: int = 1) -> None:
        done.append(first + second)

    async with working(app):
        await until(lambda: app.runners != [])
        await add.send(1, 2)
        for number in range(50):
            await add.send(number)
        await until(lambda: len(done) == 51)
    assert sorted(done) == sorted([3, *range(1, 51)])
    described = await mq.describe("sums")
    assert described["consumers"][0]["ready"] == described["consumers"][0]["inflight"] == 0


async def test_never_more_at_once_than_the_concurrency(app: App) -> None:
    at_once = most = done = 0

    @app.worker("t", concurrency=3)
    async def work() -> None:
        nonlocal at_once, most, done
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        at_once -= 1
        done += 1

    async with working(app):
        await until(lambda: app.runners != [])
        await asyncio.gather(*(work.send() for _ in range(40)))
        await until(lambda: done == 40)
    assert most == 3


async def test_a_failed_job_is_tried_again_and_then_dead_with_its_exception(app: App, mq: Client) -> None:
    attempts: list[str] = []

    @app.worker("t", retries=2, backoff="1ms")
    async def fails(name: str) -> None:
        attempts.append(name)
        raise RuntimeError(f"no {name}")

    @app.worker("u", retries=2, backoff="1ms", dead_on=KeyError)
    async def hopeless() -> None:
        attempts.append("hopeless")
        raise KeyError("x")

    async with working(app):
        await until(lambda: app.runners != [])
        await fails.send("a")
        await hopeless.send()
        await until(lambda: [one.counts.dead for one in app.runners] == [1, 1])
        counts = [vars(one.counts) for one in app.runners]
    assert sorted(attempts) == ["a", "a", "a", "hopeless"]
    assert [(one["failed"], one["done"]) for one in counts] == [(3, 0), (1, 0)]
    ((payload, headers),) = await letters(mq, "t")
    assert json.loads(payload) == {"name": "a"}
    assert (headers["toymq-reason"], headers["toymq-error-type"]) == ("max-attempts", "RuntimeError")
    assert headers["toymq-error"] == "no a"
    ((_, headers),) = await letters(mq, "u")
    assert headers["toymq-reason"] == "rejected", "by dead_on, and not for want of retries"


async def test_an_exception_whose_text_is_no_utf8_is_a_dead_letter_once(
    app: App, mq: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """The job is a coroutine, runs in a thread, or in a process."""
    attempts: list[str] = []

    @app.worker("t", retries=0)
    async def waits() -> None:
        attempts.append("t")
        raise ValueError("\udcff\ud800")

    @app.worker("u", retries=0)
    def blocks() -> None:
        attempts.append("u")
        raise ValueError("\udcff\ud800")

    fails = app.worker("v", retries=0, executor="process")(process_jobs.fail)
    async with working(app):
        await until(lambda: app.runners != [])
        await waits.send()
        await blocks.send()
        with pytest.raises(toymq.JobFailed, match=r"ValueError: \\udcff\\ud800"):
            await fails.call("surrogates")
        await until(lambda: [one.counts.dead for one in app.runners] == [1, 1, 1])
        for topic in "tuv":
            ((_, headers),) = await letters(mq, topic)
            assert headers["toymq-error"] == r"\udcff\ud800"
    assert sorted(attempts) == ["t", "u"]
    assert "is not told to the broker" not in caplog.text
    assert caplog.text.encode(), "any handler can write it"


async def test_a_message_that_does_not_fit_is_dead_at_once_and_says_why(app: App, mq: Client) -> None:
    @app.worker("t")
    async def takes(number: int) -> None: ...

    await mq.pub("t", b'{"number": "one"}')
    async with working(app):
        await until(lambda: app.runners != [] and app.runners[0].counts.dead == 1)
    ((_, headers),) = await letters(mq, "t")
    assert "takes is a whole number, not 'one'" in str(headers)


async def test_a_job_whose_worker_was_killed_each_time_is_dead_behind_its_last_attempt(app: App, mq: Client) -> None:
    ran: list[int] = []

    @app.worker("t", retries=1)
    async def work(message: toymq.Message) -> None:
        ran.append(message.attempt)

    await mq.pub("t", b"")
    for _ in range(2):  # two workers that never say how it ended
        (message,) = await mq.pull("t", "workers")
        await message.nack(0)
    async with working(app):
        await until(lambda: app.runners != [] and app.runners[0].counts.dead == 1)
    assert ran == []
    ((_, headers),) = await letters(mq, "t")
    assert "all 2 attempts are used up" in str(headers)


async def test_a_coroutine_that_takes_too_long_is_cancelled_and_has_failed(
    app: App, mq: Client, caplog: pytest.LogCaptureFixture
) -> None:
    cancelled = 0

    @app.worker("t", timeout=0.01, retries=0)
    async def slow() -> None:
        nonlocal cancelled
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled += 1
            raise

    async with working(app):
        await until(lambda: app.runners != [])
        await slow.send()
        await until(lambda: app.runners[0].counts.dead == 1)
    assert cancelled == 1
    assert "took longer than 0.01 s" in str(await letters(mq, "t"))


async def test_a_time_out_of_the_function_itself_is_its_own(app: App, mq: Client) -> None:
    @app.worker("t", timeout=30, retries=0)
    async def fails() -> None:
        raise TimeoutError("of the database")

    async with working(app):
        await until(lambda: app.runners != [])
        await fails.send()
        await until(lambda: app.runners[0].counts.dead == 1)
    assert "of the database" in str(await letters(mq, "t"))


async def test_keyed_jobs_of_a_key_come_one_after_the_other(app: App) -> None:
    running: set[str] = set()
    done: dict[str, list[int]] = {"a": [], "b": []}

    @app.worker("t", concurrency=4, mode="keyed")
    async def work(group: str, number: int) -> None:
        assert group not in running
        running.add(group)
        await asyncio.sleep(0)
        running.remove(group)
        done[group].append(number)

    async with working(app):
        await until(lambda: app.runners != [])
        for number in range(20):
            group = "ab"[number % 2]
            await work.options(headers={"toymq-group": group}).send(group, number)
        await until(lambda: sum(map(len, done.values())) == 20)
    assert done == {"a": list(range(0, 20, 2)), "b": list(range(1, 20, 2))}


async def test_plain_functions_run_in_threads_at_once(app: App, mq: Client) -> None:
    together = threading.Barrier(3, timeout=20)
    done: list[str] = []

    @app.worker("t", concurrency=3)
    def work() -> None:
        together.wait()
        done.append(threading.current_thread().name)

    @app.worker("u", retries=0)
    def stops(again: bool) -> None:
        raise StopIteration if again else GeneratorExit  # a future holds neither

    async with working(app):
        await until(lambda: app.runners != [])
        for _ in range(3):
            await work.send()
        await stops.send(False)  # its letter is the first
        await stops.send(True)
        await until(lambda: len(done) == 3 and app.runners[1].counts.dead == 2)
    assert len(set(done)) == 3
    assert "the function raised GeneratorExit" in str(await letters(mq, "u"))


async def test_at_the_end_running_jobs_are_finished_and_no_other_is_begun(
    app: App, mq: Client, caplog: pytest.LogCaptureFixture
) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()
    done: list[int] = []

    @app.worker("t", window=8)
    async def work(number: int) -> None:
        began.set()
        await go_on.wait()
        done.append(number)

    async def go_on_later() -> None:
        await until(lambda: "no more jobs are taken" in caplog.text)
        for _ in range(5):  # turns in which the subscriptions are closed
            await asyncio.sleep(0)
        go_on.set()

    with caplog.at_level(logging.INFO, logger="toymq.workers"):
        async with asyncio.TaskGroup() as tasks, working(app) as running:
            await until(lambda: app.runners != [])
            for number in range(4):
                await work.send(number)
            await began.wait()
            tasks.create_task(go_on_later())
    assert running.result() is True
    assert done == [0]
    assert (await mq.describe("t"))["consumers"][0]["ready"] == 3


async def test_at_the_end_a_running_job_stays_with_its_worker(app: App, mq: Client, caplog: pytest.LogCaptureFixture) -> None:
    """Found: with a second slot free at the shutdown, the running job's message was given back, and it ran twice."""
    began, go_on = asyncio.Event(), asyncio.Event()

    @app.worker("t", concurrency=2)
    async def work() -> None:
        began.set()
        await go_on.wait()

    async def look() -> None:
        await until(lambda: "no more jobs are taken" in caplog.text)
        for _ in range(5):  # turns in which the subscriptions are closed
            await mq.ping()
        assert await mq.pull("t", "workers") == [], "it is still leased"
        go_on.set()

    with caplog.at_level(logging.INFO, logger="toymq.workers"):
        async with asyncio.TaskGroup() as tasks, working(app) as running:
            await until(lambda: app.runners != [])
            await work.send()
            await began.wait()
            tasks.create_task(look())
    assert running.result() is True
    (consumer,) = (await mq.describe("t"))["consumers"]
    assert (consumer["backlog"], consumer["inflight"], consumer["acked_total"]) == (0, 0, 1)


async def test_a_job_that_does_not_end_in_time_goes_to_another_worker_at_once(app: App, mq: Client) -> None:
    began = asyncio.Event()

    @app.worker("t")
    async def work() -> None:
        began.set()
        await asyncio.Event().wait()

    async with working(app, shutdown=0.01) as running:
        await until(lambda: app.runners != [])
        await work.send()
        await began.wait()
    assert running.result() is True
    (message,) = await mq.pull("t", "workers", wait=10)
    assert message.attempt == 2


async def test_a_thread_that_does_not_end_in_time_is_told(app: App) -> None:
    began, go_on = threading.Event(), threading.Event()

    @app.worker("t")
    def work() -> None:
        began.set()
        go_on.wait(20)

    try:
        async with working(app, shutdown=0.01) as running:
            await until(lambda: app.runners != [])
            await work.send()
            await until(began.is_set)
        assert running.result() is False
    finally:
        go_on.set()


async def test_a_consumer_that_is_exclusive_ends_the_workers_with_its_error(app: App, mq: Client) -> None:
    @app.worker("t")
    async def work() -> None: ...

    await mq.pub("t", b"{}")
    async with mq.sub("t", "workers"):
        with pytest.raises(ModeConflict):
            await app.run(asyncio.Event())


async def test_a_periodic_job_runs_once_over_all_its_workers(broker: InProcess, mq: Client) -> None:
    ran: list[str] = []
    apps = [App(f"toymq://127.0.0.1:{broker.port}") for _ in range(3)]
    for app in apps:
        app.every("1s", topic="ticks")(lambda: ran.append("x"))
        app._schedules[0].period_ms = 50
    async with working(apps[0]), working(apps[1]), working(apps[2]):
        await until(lambda: len(ran) >= 2)
    ticks = await mq.describe("ticks")
    keys = [frame.key for frame in iter_frames((await mq.fetch("ticks", 0, ticks["next_id"])).frames)]
    assert len(set(keys)) == len(keys) == ticks["next_id"], "each tick is published once by all of them"
    (consumer,) = ticks["consumers"]
    not_run = consumer["backlog"] + ticks["expired_total"]  # one came at the end, or no worker had time for it in its period
    assert len(ran) == ticks["next_id"] - not_run, "and run once"


async def test_workers_that_wait_for_their_broker_can_be_stopped() -> None:
    """Found: SIGTERM and Ctrl-C had no effect, and processes whose parent was killed stayed."""
    with socket.create_server(("127.0.0.1", 0)) as not_ready:
        not_ready.setblocking(False)
        app = App(f"toymq://127.0.0.1:{not_ready.getsockname()[1]}")

        @app.worker("t")
        async def work() -> None: ...

        stop = asyncio.Event()
        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            running = tasks.create_task(app.run(stop))
            for _ in range(2):  # so it waits, and tries again
                (await asyncio.get_running_loop().sock_accept(not_ready))[0].close()
            stop.set()
        assert running.result() is True


async def test_another_concurrency_for_all_workers(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.worker("t", concurrency=1)
    async def work() -> None: ...

    with caplog.at_level(logging.INFO, logger="toymq.workers"):
        async with working(app, concurrency=5):
            await until(lambda: app.runners != [])
            assert app.runners[0].job.settings.concurrency == 5
    assert work.settings.concurrency == 1


async def test_a_job_that_catches_its_cancellation_does_not_keep_the_workers(
    app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Found: with such a job the workers never ended."""
    monkeypatch.setattr("toymq.workers.runner.STUBBORN_S", 0.01)
    began, go_on = asyncio.Event(), asyncio.Event()

    @app.worker("t")
    async def work() -> None:
        began.set()
        while not go_on.is_set():
            with suppress(asyncio.CancelledError):
                await go_on.wait()

    async with working(app, shutdown=0.01) as running:
        await until(lambda: app.runners != [])
        await work.send()
        await began.wait()
    assert running.result() is False
    assert "jobs go on although they were cancelled: the function catches asyncio.CancelledError" in caplog.text
    go_on.set()


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (asyncio.CancelledError(), "RuntimeError", "raised CancelledError: something that it awaits was cancelled"),
        (SystemExit(3), "RuntimeError", "called sys.exit(3), which would end the worker"),
        (KeyboardInterrupt("stop"), "KeyboardInterrupt", "stop"),
        (Skipped("not today"), f"{__name__}.Skipped", "not today"),
    ],
)
@pytest.mark.parametrize("in_thread", [False, True])
async def test_what_would_end_more_than_the_job_fails_it(
    app: App, mq: Client, error: BaseException, kind: str, text: str, in_thread: bool
) -> None:
    """Found: after some exceptions the job was redelivered at once until no attempt was left, and others ended the process."""

    async def coroutine() -> None:
        raise error

    def plain() -> None:
        raise error

    function: Callable[[], object] = plain if in_thread else coroutine
    app.worker("t", retries=1, backoff="1ms")(function)
    async with working(app):
        await until(lambda: app.runners != [])
        await mq.pub("t", b"{}")
        await until(lambda: app.runners[0].counts.dead == 1)
        assert app.runners[0].counts.failed == 2
    ((_, headers),) = await letters(mq, "t")
    assert (headers["toymq-error-type"], text in headers["toymq-error"]) == (kind, True)
    assert f"in {function.__name__}" in headers["toymq-traceback"]


async def test_a_huge_text_of_an_exception_is_a_short_line(app: App, mq: Client, caplog: pytest.LogCaptureFixture) -> None:
    @app.worker("t", retries=0)
    async def fails() -> None:
        raise ValueError("x" * 1_000_000)

    async with working(app):
        await until(lambda: app.runners != [])
        with pytest.raises(toymq.JobFailed) as failed:
            await fails.call()
    assert 10_000 < len(failed.value.text) < 20_000
    (line,) = [one.getMessage() for one in caplog.records if "is a dead letter" in one.getMessage()]
    assert len(line) < 1300
    ((_, headers),) = await letters(mq, "t")
    assert headers["toymq-error"].endswith("...")


async def test_each_job_has_context_variables_of_its_own(app: App) -> None:
    name: ContextVar[int] = ContextVar("name")
    seen: list[int | None] = []

    @app.worker("t", concurrency=1)
    async def work(number: int) -> None:
        seen.append(name.get(None))
        name.set(number)

    async with working(app):
        await until(lambda: app.runners != [])
        for number in range(3):
            await work.send(number)
        await until(lambda: len(seen) == 3)
    assert seen == [None] * 3


async def test_workers_say_that_they_wait_for_their_broker(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Found: workers without a broker logged nothing for an hour."""
    monkeypatch.setattr("toymq.workers.app.PATIENCE_S", 0.01)
    app = App("toymq://127.0.0.1:1")

    @app.worker("t")
    async def work() -> None: ...

    async with working(app):
        await until(lambda: "the broker is not there yet (no connection to 127.0.0.1:1: " in caplog.text)


async def test_a_result_that_is_too_large_is_told_to_its_caller(tmp_path: Path) -> None:
    """Found: the caller waited until its time-out."""
    async with serving(tmp_path / "d2", max_payload_bytes=4096) as served:
        app = App(f"toymq://127.0.0.1:{served.port}")

        @app.worker("t")
        async def work() -> str:
            return "x" * 5000

        async with working(app):
            await until(lambda: app.runners != [])
            with pytest.raises(toymq.JobFailed, match="this broker takes at most 4096"):
                await work.call()
