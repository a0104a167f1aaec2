"""DNS lookups: names whose server does not answer leave threads for the others."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from toymq_py.gateway import name_lookups
from toymq_py.gateway.name_lookups import SLOW_THREADS_MAX, THREADS_MAX, NameLookups


class Names:
    """A DNS in which names that begin with "dark" get no answer before ``light``."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._light = threading.Event()

    def __call__(self, host: str) -> list[str]:
        self.asked.append(host)
        if host.startswith("dark"):
            self._light.wait(60)
        if host.startswith("wrong"):
            raise OSError(-2, "Name or service not known")
        return ["1.1.1.1"]

    def light(self) -> None:
        self._light.set()


@pytest.fixture
def names() -> Iterator[Names]:
    names = Names()
    yield names
    names.light()


async def until_running(lookups: NameLookups, count: int) -> None:
    async with asyncio.timeout(30):
        while len(lookups._running) != count:  # noqa: ASYNC110 (it has no event)
            await asyncio.sleep(0)


async def test_silent_names_stop_no_others(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: four webhooks whose DNS server was silent stopped all webhooks with a host name."""
    monkeypatch.setattr(name_lookups, "SLOW_S", 0.0)
    lookups = NameLookups(asyncio.get_running_loop(), names)
    for n in range(SLOW_THREADS_MAX):
        await lookups.begin(f"dark{n}")
    for _ in range(9):
        assert await (await lookups.begin("good")) == ["1.1.1.1"]
    assert len(lookups._running) == SLOW_THREADS_MAX


async def test_names_that_were_silent_leave_threads_for_the_others(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_lookups, "SLOW_S", 0.0)
    loop = asyncio.get_running_loop()
    lookups = NameLookups(loop, names)
    for n in range(THREADS_MAX):
        await lookups.begin(f"dark{n}")
    waiting = asyncio.ensure_future(lookups.begin("good"))
    await asyncio.sleep(0)
    assert not waiting.done(), "each is new, so they have all threads"
    names.light()
    assert await (await waiting) == ["1.1.1.1"]
    await until_running(lookups, 0)
    lookups._slow = dict.fromkeys([f"dark{n}" for n in range(THREADS_MAX)])
    names._light.clear()
    again = [asyncio.ensure_future(lookups.begin(f"dark{n}")) for n in range(THREADS_MAX)]
    await until_running(lookups, SLOW_THREADS_MAX)
    assert await (await lookups.begin("good")) == ["1.1.1.1"], "now they are known"
    names.light()
    await asyncio.gather(*again)
    await until_running(lookups, 0)


async def test_a_wait_for_a_thread_can_be_cancelled(names: Names) -> None:
    lookups = NameLookups(asyncio.get_running_loop(), names)
    for n in range(THREADS_MAX):
        await lookups.begin(f"dark{n}")
    waiting = asyncio.ensure_future(lookups.begin("good"))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert not lookups._waiters


async def test_one_lookup_for_all_that_ask_for_a_name(names: Names) -> None:
    lookups = NameLookups(asyncio.get_running_loop(), names)
    first, second = await lookups.begin("dark"), await lookups.begin("dark")
    given_up = asyncio.ensure_future(asyncio.wait_for(asyncio.shield(first), 0))
    with pytest.raises(TimeoutError):
        await given_up
    names.light()
    assert await second == ["1.1.1.1"], "one that was given up is not cancelled for the others"
    assert names.asked == ["dark"]


async def test_an_address_asks_no_server(names: Names) -> None:
    lookups = NameLookups(asyncio.get_running_loop(), names)
    found = [await (await lookups.begin(host)) for host in ("127.0.0.1", "::1", "2130706433")]
    assert (found, names.asked) == ([["127.0.0.1"], ["::1"], ["127.0.0.1"]], [])


async def test_a_name_that_is_not_known(names: Names) -> None:
    lookups = NameLookups(asyncio.get_running_loop(), names)
    with pytest.raises(OSError, match="not known"):
        await (await lookups.begin("wrong"))
    await lookups.begin("wrong again")  # not awaited: nothing is left to be logged
    await until_running(lookups, 0)
    assert not lookups._slow


async def test_a_machine_without_a_thread_for_it_delays_a_lookup(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: the RuntimeError of ``Thread.start`` ended the task that pushes webhooks, and the gateway with it."""
    refused: list[str] = []
    start = threading.Thread.start

    def refuse_once(thread: threading.Thread) -> None:
        if not refused:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_once)
    monkeypatch.setattr(name_lookups, "RETRY_S", 0.0)
    lookups = NameLookups(asyncio.get_running_loop(), names)
    assert await (await lookups.begin("good")) == ["1.1.1.1"]
    assert refused == ["toymq-lookup-good"]
    assert names.asked == ["good"]
    await until_running(lookups, 0)
