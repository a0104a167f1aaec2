"""``App``: what its decorators refuse, and to which broker it connects."""

import asyncio
import re
import threading
from random import Random
from typing import Any, cast

import pytest

from toymq import App, Client, Message
from toymq.workers.app import WINDOW_PER_SLOT
from toymq.workers.runner import Runner
from toymq_py.errors import BadArgument, BadName, ConfigError


def test_the_window_follows_the_concurrency() -> None:
    app = App()
    job = app.worker("t", concurrency=3)(lambda: None)
    assert (job.settings.window, app.worker("u", window=7)(lambda: None).settings.window) == (3 * WINDOW_PER_SLOT, 7)


def test_one_function_for_a_topic_and_consumer() -> None:
    app = App()
    app.worker("t")(lambda: None)
    app.worker("t", consumer="others")(lambda: None)
    with pytest.raises(ConfigError, match="takes the jobs of t as workers already: give"):
        app.worker("t")(lambda: None)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"topic": "a b"}, BadName, "a b"),
        ({"consumer": ""}, BadName, "consumer"),
        ({"concurrency": 0}, BadArgument, "concurrency is a whole number from 1"),
        ({"window": 0}, BadArgument, "window is a whole number from 1"),
        ({"timeout": "soon"}, BadArgument, "timeout: invalid duration"),
        ({"visibility": 0}, BadArgument, "visibility is a duration in seconds, from 0.001"),
        ({"retries": -1}, BadArgument, "retries is"),
        ({"mode": "exclusive"}, BadArgument, "invalid mode 'exclusive': write shared or keyed"),
    ],
)
def test_a_wrong_argument_of_worker_is_refused(arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error) as refused:
        App().worker(**{"topic": "t", **arguments})
    assert text in str(refused.value)


def test_worker_decorates_functions_once() -> None:
    app = App()
    job = app.worker("t")(lambda: None)
    for wrong in ("t", job, Random):
        with pytest.raises(TypeError, match="worker decorates a function, not"):
            app.worker("u")(wrong)  # type: ignore[arg-type]


def test_a_periodic_job_has_a_topic_of_its_name_and_no_retry() -> None:
    app = App()

    @app.every("1h")
    def clean_up() -> None: ...

    assert (clean_up.topic, clean_up.settings.retries.count) == ("every.clean_up", 0)
    with pytest.raises(BadName):
        app.every("1h", topic="every.*")(lambda: None)  # it could not be published to
    with pytest.raises(BadArgument, match="period is a duration in seconds, from 1 to ten years"):
        app.every("10ms")


def test_a_periodic_job_that_needs_an_argument_is_refused_where_it_is_decorated() -> None:
    """Found by a trial: the job of each tick became a dead letter."""
    app = App()
    with pytest.raises(TypeError, match="report needs shop, day, and a tick has no arguments: give shop, day a default"):

        @app.every("10s")  # type: ignore[arg-type]
        def report(shop: str, message: Message, day: int, width: int = 7) -> None: ...

    assert app._jobs == app._schedules == []
    app.every("10s", topic="ticks")(lambda width=7: None)


def test_a_cron_expression_is_refused_as_one() -> None:
    with pytest.raises(BadArgument, match=r"period is a duration, \"5m\" say, not .*: there are no cron expressions"):
        App().every("*/5 * * * *")


def test_the_environment_names_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOYMQ_URL", "toymq://elsewhere:1")
    assert (App()._urls, App("toymq://here")._urls) == ("toymq://elsewhere:1", "toymq://here")


async def test_an_app_without_workers_does_not_run() -> None:
    with pytest.raises(ConfigError, match="this app has no worker"):
        await App().run(asyncio.Event())


async def test_run_refuses_what_would_hang() -> None:
    """Found: a threading.Event as ``stop`` blocked the loop, and with a concurrency of 0 no job was begun."""
    app = App()
    app.worker("a")(of_a_module)
    with pytest.raises(TypeError, match=r"stop is an asyncio.Event, not <threading.Event"):
        await app.run(threading.Event())  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match="concurrency is a whole number from 1 to 10000, not 0"):
        await app.run(asyncio.Event(), concurrency=0)


def test_a_decorator_without_its_argument_says_how_it_is_written() -> None:
    """Found: the error was that a topic is a text."""
    for decorator, text in ((App().worker, '`@app.worker("jobs")` above shop'), (App().every, '`@app.every("1h")` above shop')):
        with pytest.raises(TypeError, match=re.escape(text)):

            @decorator  # type: ignore[arg-type]
            def shop() -> None: ...


def of_a_module() -> None: ...


def test_two_functions_of_a_name_are_refused_and_one_function_for_two_topics_is_not() -> None:
    """Found: the second function of a name silently replaced the first."""
    app = App()
    app.worker("a")(of_a_module)
    app.worker("b")(of_a_module)

    def other() -> None: ...

    other.__qualname__ = "of_a_module"
    with pytest.raises(ConfigError, match=r"there are two functions .*test_app.of_a_module, for a and c: .*; rename one"):
        app.worker("c")(other)


async def test_figures_of_a_function_with_two_topics_stand_apart() -> None:
    app = App()
    for topic in ("a", "b"):
        app.worker(topic)(of_a_module)
    app.worker("c")(test_an_app_without_workers_does_not_run)
    app.runners = [Runner(job, cast("Client", None), Random()) for job in app._jobs]
    name = f"{__name__}.of_a_module"
    assert set(app.figures()) == {f"{name} (a)", f"{name} (b)", f"{__name__}.test_an_app_without_workers_does_not_run"}
