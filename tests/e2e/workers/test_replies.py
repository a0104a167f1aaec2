"""Jobs that are called and return a result, over a real broker: the caller gets the result, or what became of the job."""

import asyncio
from collections.abc import Coroutine
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import toymq
from tests.support.in_process import InProcess, serving
from tests.support.tokens import authority, table, token
from tests.support.worker_rig import until, working
from toymq import App, Client
from toymq.sockets import reserved_port
from toymq.workers.replies import Replies


async def test_a_call_returns_what_the_function_returns_as_its_annotation_says(app: App, mq: Client) -> None:
    @app.worker("sums", concurrency=4)
    async def add(first: int, second: int) -> Decimal:
        return Decimal(first + second)

    @app.worker("plain")
    def plain() -> None: ...

    async with working(app):
        await until(lambda: app.runners != [])
        found = await asyncio.gather(*(add.call(number, 1) for number in range(20)))
        assert found == [Decimal(number + 1) for number in range(20)]
        assert await plain.call() is None
        (topic,) = await mq.topics("replies.>")
        assert topic["consumers"][0]["sessions"] == 1
    assert await mq.topics("replies.>") == []


async def test_a_job_is_called_by_the_name_of_its_topic(app: App, broker: InProcess) -> None:
    @app.worker("sums", concurrency=4)
    async def add(first: int, second: int) -> Decimal:
        return Decimal(first + second)

    async with working(app), App(f"toymq://127.0.0.1:{broker.port}") as other:
        await until(lambda: app.runners != [])
        assert await app.call("sums", 1, second=2) == Decimal(3)
        assert await other.call("sums", first=1, second=2) == "3", "without the function's annotation it is as JSON has it"
        with pytest.raises(toymq.JobFailed, match="sums: Unfit: the job has no second"):
            await other.call("sums", first=1)
        with pytest.raises(TypeError, match="this app has no job of 'sums': give its arguments by name"):
            await other.call("sums", 1, 2)
        with pytest.raises(TypeError, match="missing a required argument: 'second'"):
            await app.call("sums", 1)


async def test_a_call_raises_what_became_of_its_job(app: App, broker: InProcess) -> None:
    tries: list[int] = []
    older = App(f"toymq://127.0.0.1:{broker.port}")
    """Of a caller whose function is of another version."""

    @older.worker("t")
    async def before(number: str) -> None: ...

    @app.worker("t", retries=1, backoff="1ms")
    async def fails(number: int) -> None:
        tries.append(number)
        raise ValueError("not today")

    @app.worker("u")
    async def odd() -> object:
        return object()

    async with working(app):
        await until(lambda: app.runners != [])
        with pytest.raises(toymq.JobFailed, match="fails: ValueError: not today") as failed:
            await fails.call(1)
        assert (failed.value.error_type, failed.value.text, tries) == ("ValueError", "not today", [1, 1])
        with pytest.raises(TypeError, match=r"argument number of .*fails is a whole number, not 'x'"):
            await fails.call("x")  # type: ignore[arg-type]
        async with older:
            with pytest.raises(toymq.JobFailed, match="is a whole number, not 'x'"):
                await before.call("x")
        with pytest.raises(toymq.JobFailed, match="is of type object, which JSON does not have"):
            await odd.call()


async def test_a_call_without_a_worker_ends_and_is_not_done_later(app: App, mq: Client) -> None:
    @app.worker("t")
    async def work() -> None: ...

    consumers = (f"c{number}" for number in count())

    async def is_dropped() -> bool:
        return await mq.pull("t", next(consumers)) == []

    async with app:
        with pytest.raises(toymq.RequestTimeout, match=r"no result of .*work within 0.1 s: .* or it failed and is tried again"):
            await work.options(timeout=0.1).call()
        await until(is_dropped)


async def test_a_worker_answers_to_topics_of_results_alone(app: App, mq: Client) -> None:
    done = asyncio.Event()

    @app.worker("t")
    async def work() -> None:
        done.set()

    await mq.pub("t", b"{}", headers={"toymq-reply-to": "orders", "toymq-call": "1"})
    async with working(app):
        await done.wait()
    with pytest.raises(toymq.NoSuchTopic):
        await mq.describe("orders")


async def test_a_result_that_comes_late_makes_no_topic(app: App, mq: Client, caplog: pytest.LogCaptureFixture) -> None:
    """A message that asks for an answer in a topic that does not exist makes none either: otherwise thousands of them would
    make thousands of topics."""

    @app.worker("t")
    async def work() -> None: ...

    await mq.pub("t", b"{}", headers={"toymq-reply-to": "replies.1.gone", "toymq-call": "1"})
    async with working(app):
        await until(lambda: "a result is not told to replies.1.gone" in caplog.text)
    with pytest.raises(toymq.NoSuchTopic):
        await mq.describe("replies.1.gone")


async def test_a_caller_whose_first_connection_failed_has_another(broker: InProcess, app: App) -> None:
    @app.worker("t")
    async def work() -> int:
        return 5

    ports = iter((reserved_port(broker), broker.port))
    replies = Replies(lambda: toymq.connect(f"toymq://127.0.0.1:{next(ports)}"))

    async def publish(headers: dict[str, str], left_s: float) -> toymq.Receipt:
        return await app.client.pub("t", b"{}", headers=headers)

    async with working(app):
        await until(lambda: app.runners != [])
        with pytest.raises(toymq.ConnectFailed):
            await replies.call("work", publish, 30)
        assert await replies.call("work", publish, 30) == 5
        await replies.close()


async def test_a_caller_without_rights_to_settings_gets_its_results(tmp_path: Path) -> None:
    rights = table("shop", 'publish = ["t", "replies.>"]\nsubscribe = ["t", "replies.>"]')
    async with serving(tmp_path / "d2", authority=authority(rights)) as served:
        app = App(f"toymq://{token('shop')}@127.0.0.1:{served.port}")

        @app.worker("t")
        async def work() -> int:
            return 5

        async with working(app):
            await until(lambda: app.runners != [])
            assert await work.call() == 5


async def test_a_caller_whose_broker_is_away_ends_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toymq.workers.replies.GOODBYE_S", 0.01)
    async with serving(tmp_path / "d2") as served:
        replies = Replies(lambda: toymq.connect(f"toymq://127.0.0.1:{served.port}"))
        published = asyncio.Event()

        async def publish(headers: dict[str, str], left_s: float) -> toymq.Receipt:
            published.set()
            return toymq.Receipt(0, False)

        calling = asyncio.get_running_loop().create_task(_outcome(replies.call("work", publish, 60)))
        await published.wait()
    async with asyncio.timeout(30):
        await replies.close()
    assert isinstance(await calling, toymq.ClientClosed)


async def test_a_call_whose_topic_of_results_is_deleted_is_told_and_the_next_has_another(app: App, mq: Client) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.worker("t")
    async def work() -> int:
        begun.set()
        await go_on.wait()
        return 5

    async with working(app), asyncio.TaskGroup() as tasks:
        await until(lambda: app.runners != [])
        calling = tasks.create_task(_outcome(work.call()))
        await begun.wait()
        (topic,) = await mq.topics("replies.>")
        await mq.delete(topic["topic"])
        assert "the topic of results is gone" in str(await calling)
        go_on.set()
        assert await work.call() == 5


async def _outcome(call: Coroutine[Any, Any, object]) -> object:
    try:
        return await call
    except toymq.ConnectionLost as error:
        return error


async def test_topics_of_callers_that_were_killed_are_removed_in_the_end(app: App, mq: Client) -> None:
    for name in ("replies.5.left", "replies.99999999999.young", "replies.other"):
        await mq.create(name)
    await mq.create("replies.6.attached")

    @app.worker("t")
    async def work() -> None: ...

    async with mq.sub("replies.6.attached", "caller"), working(app):
        await until(lambda: app.runners != [])
        await work.call()
    left = {one["topic"] for one in await mq.topics("replies.>")}
    assert left == {"replies.6.attached", "replies.99999999999.young", "replies.other"}
