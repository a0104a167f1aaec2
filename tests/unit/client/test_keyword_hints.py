"""Wrong keyword arguments get an error that names the right one, in both clients; other TypeErrors are unchanged."""

import inspect
from pathlib import Path
from types import SimpleNamespace

import pytest

import toymq
from toymq import keyword_hints, sync
from toymq.keyword_hints import hinted, remedy
from toymq.sync.call_guard import CallGuard
from toymq.workers.job import Job
from toymq_py.setting_units import SETTINGS as SETTINGS_OF_TOPICS

WRONG = [
    ({"prefetch": 10}, "sub() has no argument 'prefetch': use window"),
    ({"visibilty": 60}, "sub() has no argument 'visibilty': use visibility"),
    ({"visibility_s": 60}, "sub() has no argument 'visibility_s': use visibility"),
    ({"group": "g"}, "sub() has no argument 'group': use consumer"),
    (
        {"colour": 1},
        "sub() has no argument 'colour': it has topic, consumer, auto_ack, auto_extend, window, visibility, mode, start",
    ),
]


@pytest.mark.parametrize(("given", "text"), WRONG)
@pytest.mark.parametrize("client", [toymq.Client, sync.Client], ids=["asyncio", "sync"])
def test_an_unknown_argument_of_sub_names_the_one_that_is_meant(client: type, given: dict[str, object], text: str) -> None:
    with pytest.raises(TypeError) as error:
        client.sub(SimpleNamespace(_guard=CallGuard()), "t", "c", **given)  # type: ignore[attr-defined]
    assert str(error.value) == text


async def test_so_do_pull_create_and_connect(tmp_path: Path) -> None:
    client = toymq.connect("toymq://127.0.0.1:1")
    with pytest.raises(TypeError, match=r"^pull\(\) has no argument 'timeout': use wait$"):
        await client.pull("t", "c", timeout=5)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^create\(\) has no argument 'max_attempts': settings are a dict, \{"):
        await client.create("t", max_attempts=3)  # type: ignore[call-arg]
    for connect in (toymq.connect, sync.connect):
        with pytest.raises(TypeError, match=r"^connect\(\) has no argument 'password': use token$"):
            connect("toymq://127.0.0.1:1", password="x")  # type: ignore[operator]


def test_so_do_those_of_a_worker() -> None:
    """Wrong arguments of a worker's decorator get the hint, too, also for the names that Celery and Dramatiq use."""
    app = toymq.App("toymq://127.0.0.1:1")
    for given, meant in (
        ({"concurency": 4}, "concurrency"), ({"prefetch": 4}, "window"), ({"max_retries": 3}, "retries"),
        ({"time_limit": "5s"}, "timeout"), ({"throws": ValueError}, "dead_on"),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=rf"^worker\(\) has no argument '\w+': use {meant}$"):
            app.worker("jobs", **given)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^every\(\) has no argument 'max_retries': use retries$"):
        app.every("1h", max_retries=3)  # type: ignore[call-arg]

    @app.worker("jobs")
    def job(n: int) -> None: ...

    with pytest.raises(TypeError, match=r"^options\(\) has no argument 'countdown': use delay$"):
        job.options(countdown=5)  # type: ignore[call-arg]


def test_another_type_error_is_left_alone() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'consumer'"):
        toymq.Client.sub(object(), "t")  # type: ignore[call-arg, arg-type]

    @hinted
    def fails(a: int) -> None:
        raise TypeError("of its own")

    with pytest.raises(TypeError, match="of its own"):
        fails(a=1)


def test_the_signature_stays_and_a_coroutine_function_is_one() -> None:
    assert "visibility" in inspect.signature(toymq.Client.sub).parameters
    assert inspect.iscoroutinefunction(toymq.Client.pull)
    assert toymq.connect.__name__ == "connect"


def test_every_meant_argument_is_one_and_every_setting_is_known() -> None:
    methods = (toymq.Client.sub, toymq.Client.pull, toymq.Client.create, toymq.connect, toymq.App.worker, Job.options)
    known = {name for method in methods for name in inspect.signature(method).parameters}
    assert known.issuperset(keyword_hints.MEANT.values())
    assert set(keyword_hints.SETTINGS) == set(SETTINGS_OF_TOPICS)
    assert remedy("start_at", ["topic", "start"]) == "use start"
