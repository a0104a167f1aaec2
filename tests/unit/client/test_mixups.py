"""Objects of one client used as those of the other, blocking or asyncio: each mistake is named with its remedy, and has no
effect."""

import re
from typing import Any

import pytest

import toymq
from tests.support.obliging_broker import ObligingBroker
from toymq import sync

URL = "unix:/in/memory"
AWAIT = r"leave out `await`; `import toymq` has the asyncio client$"
ASYNC = r"leave out `async`; `import toymq` has the asyncio client$"


def says(*text: str) -> Any:
    return pytest.raises(TypeError, match="^" + "".join(text))


async def test_a_missing_async_is_said(broker: ObligingBroker) -> None:
    """Found: the errors were "'Client' object does not support the context manager protocol" and "'Subscription' object is not
    iterable"."""
    async with toymq.connect(URL) as mq:
        untyped: Any = mq
        with says("this client is for asyncio and needs `async with`; toymq.sync has the blocking client$"), untyped:
            pass
        messages: Any = await mq.sub("books", "c")
        with says("this subscription is for asyncio and needs `async with`"), messages:
            pass
        with says("this subscription is for asyncio and needs `async for`"):
            iter(messages)
        processing: Any = (await messages.next(timeout=5)).process()
        with says(re.escape("message.process() is for asyncio and needs `async with`")), processing:
            pass
        publishing: Any = mq.pub_many("t", [b"x"])
        with says("pub_many is for asyncio and needs `async for`"):
            list(publishing)
        assert len(await publishing) == 1
        await messages.close()


async def test_an_async_too_much_is_said(broker: ObligingBroker) -> None:
    """Found: the errors were "object Client can't be used in 'await' expression" and "got Subscription"."""
    with sync.connect(URL) as mq:
        with pytest.raises(TypeError, match=f"^this client is for blocking code: {AWAIT}"):
            await mq  # type: ignore[misc]
        messages, publishing = mq.sub("books", "c"), mq.pub_many("t", [b"x"])
        things: list[Any] = [mq, messages, messages.next(timeout=5).process()]
        for thing in things:
            with pytest.raises(TypeError, match=ASYNC):
                async with thing:
                    pass
        things = [messages, messages.batches(5, 0), publishing]
        for thing in things:
            with pytest.raises(TypeError, match=ASYNC):
                async for _ in thing:
                    pass
        with pytest.raises(TypeError, match=f"^pub_many is for blocking code: {AWAIT}"):
            await publishing  # type: ignore[misc]
        assert len(list(publishing)) == 1
        messages.close()


async def test_process_is_no_decorator(broker: ObligingBroker) -> None:
    """Found: used as a decorator, the blocking client's ``process`` acked a coroutine's message before the coroutine ran."""
    async with toymq.connect(URL) as mq, mq.sub("books", "c") as messages:
        processing: Any = (await messages.next(timeout=5)).process()
        with says(r"message\.process\(\) is not a decorator: write the work into its `with` or `async with` block$"):
            processing(lambda: None)
    with sync.connect(URL) as blocking, blocking.sub("books", "c") as subscription:
        processing = subscription.next(timeout=5).process()
        with says(r"message\.process\(\) is not a decorator"):
            processing(test_process_is_no_decorator)


@pytest.mark.parametrize("connect", [toymq.connect, sync.connect], ids=["asyncio", "sync"])
@pytest.mark.parametrize("name", ["on_event", "inject_headers"])
def test_a_coroutine_function_where_a_plain_one_is_called(connect: Any, name: str) -> None:
    """Found: the coroutine function was called, and never awaited."""

    async def called(*_: object) -> None:
        pass

    with says(f"{name} is called and not awaited: write `def`, not `async def`; it may start a task$"):
        connect(URL, **{name: called})


async def test_a_client_that_is_not_open_says_how(broker: ObligingBroker) -> None:
    mq = toymq.connect(URL)
    with pytest.raises(toymq.ClientClosed, match=r"not open yet: write `async with toymq\.connect\(\.\.\.\) as mq`, or `mq = "):
        await mq.pub("t", b"x")
