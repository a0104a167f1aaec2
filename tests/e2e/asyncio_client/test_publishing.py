"""The asyncio client publishes."""

import asyncio
from collections.abc import Iterator
from datetime import date

import pytest

import toymq
from tests.support.fake_broker import Peer, following
from tests.support.in_process import InProcess
from tests.support.quick_client import connect
from toymq import Client, Receipt
from toymq_py.errors import (
    BadArgument,
    BadName,
    PayloadTooLarge,
    QueueFull,
)


async def test_publish_and_consume_with_everything(mq: Client) -> None:
    headers = {"traceparent": "00-1-2-01", "Name": "wörld"}
    assert await mq.pub("all", b"a\nb", key="k", headers=headers) == Receipt(0, duplicate=False)
    assert await mq.pub("all", b"a\nb", key=b"k") == Receipt(0, duplicate=True)
    assert await mq.pub("all", b"") == Receipt(1, duplicate=False)
    async with mq.sub("all", "c", window=10, visibility=30, start="earliest") as messages:
        first, second = await messages.next(5), await messages.next(5)
        assert (first.topic, first.id, first.attempt, first.key, first.payload) == ("all", 0, 1, b"k", b"a\nb")
        assert first.headers == headers
        assert (second.key, second.headers, second.payload) == (b"", {}, b"")
        assert await first.extend(60)
        await first.ack()
        await second.nack(0)
        again = await messages.next(5)
        assert (again.id, again.attempt) == (1, 2)
        await again.ack(sync=True)
        assert not await again.extend(), "its lease is over"
    (found,) = (await mq.describe("all"))["consumers"]
    assert (found["consumer"], found["last_acked"], found["backlog"], found["sessions"]) == ("c", 1, 0, 0)


async def test_many_publishes_at_once_keep_their_order(mq: Client) -> None:
    receipts = await asyncio.gather(*(mq.pub("t", b"%d" % n) for n in range(500)))
    assert receipts == [Receipt(n, duplicate=False) for n in range(500)]
    async with mq.sub("t", "c") as messages:
        assert [(await messages.next(5)).payload for _ in range(500)] == [b"%d" % n for n in range(500)]


async def test_pub_many_awaited_and_iterated(mq: Client) -> None:
    items = [(None if n % 3 else b"k%d" % n, b"%d" % n) for n in range(3000)]
    assert [receipt.msg_id for receipt in await mq.pub_many("t", items, window=100)] == list(range(3000))
    assert [receipt.msg_id async for receipt in mq.pub_many("t", items[:1])] == [0], "its key was there"
    assert await mq.pub_many("t", []) == []
    assert [receipt.msg_id async for receipt in mq.pub_many("t", [b"x", b"y"], window=1)] == [3000, 3001]
    with pytest.raises(BadArgument, match="window is"):
        mq.pub_many("t", [], window=0)


async def test_pub_many_takes_headers_for_each_item(mq: Client) -> None:
    """Found: only ``pub`` took headers."""
    await mq.pub_many("t", [("k", b"x", {"color": "red"}), (None, b"y", None), (None, b"z", {"color": "blue"}), b"plain"])
    async with mq.sub("t", "c") as messages:
        got = [await messages.next(5) for _ in range(4)]
    assert [(message.key, message.payload, message.headers) for message in got] == [
        (b"k", b"x", {"color": "red"}), (b"", b"y", {}), (b"", b"z", {"color": "blue"}), (b"", b"plain", {})
    ]  # fmt: skip


async def test_pub_many_raises_where_the_bad_item_stands(mq: Client) -> None:
    receipts = aiter(mq.pub_many("t", [b"a", (b"two words", b""), b"b"]))
    assert await anext(receipts) == Receipt(0, duplicate=False)
    with pytest.raises(BadArgument, match="invalid key"):
        await anext(receipts)
    with pytest.raises(PayloadTooLarge):
        await mq.pub_many("t", [b"c", bytes(3_000_000)])
    assert await mq.offsets("t") == (0, 2)


async def test_what_is_left_unread_is_published_all_the_same(mq: Client) -> None:
    async for receipt in mq.pub_many("t", [b"x"] * 100):
        assert receipt.msg_id == 0
        break
    assert (await mq.pub("other", b"mine")).msg_id == 0
    assert await mq.offsets("t") == (0, 100)


async def test_mistakes_are_named_before_anything_is_sent(mq: Client) -> None:
    for error, call in (
        (BadName, lambda: mq.pub("../x", b"")),
        (BadArgument, lambda: mq.pub("t", b"", key="two words")),
        (BadArgument, lambda: mq.pub("t", b"", key="")),
        (BadArgument, lambda: mq.pub("t", b"", key="~seq~1")),
        (BadArgument, lambda: mq.pub("t", b"", headers={"a:b": "c"})),
        (BadArgument, lambda: mq.pub("t", b"", headers={"a": "b\nc"})),
        (BadArgument, lambda: mq.pub("t", b"", delay=-1)),
        (PayloadTooLarge, lambda: mq.pub("t", bytes(3_000_000))),
    ):
        with pytest.raises(error):
            await call()
    with pytest.raises(TypeError, match="a payload is bytes, not str"):
        await mq.pub_many("t", ["text"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"not str: use payload.encode\(\)"):
        await mq.pub("t", "text")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"not dict: use pub_value\(…, codec=.json.\), or json.dumps"):
        await mq.pub("t", {"id": 17})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="delay is a number of seconds or a text with a unit, not b'5s'"):
        await mq.pub("t", b"", delay=b"5s")  # type: ignore[arg-type]
    with pytest.raises(BadName):
        mq.sub("a*", "c")
    with pytest.raises(BadArgument):
        mq.sub("t", "c", window=0)
    with pytest.raises(BadArgument):
        mq.sub("t", "c", start="soon")
    assert await mq.topics() == []


async def test_trace_context_is_injected(broker: InProcess) -> None:
    def inject(headers: dict[str, str]) -> None:
        headers["traceparent"] = "00-abc-def-01"

    async with toymq.connect(f"127.0.0.1:{broker.port}", inject_headers=inject) as mq:
        given = {"a": "b"}
        await mq.pub("t", b"x", headers=given)
        assert given == {"a": "b"}
        async with mq.sub("t", "c") as messages:
            assert (await messages.next(5)).headers == {"a": "b", "traceparent": "00-abc-def-01"}
            await mq.pub_many("t", [b"y"])
            second = await messages.next(5)
            assert (second.headers, second.payload) == ({"traceparent": "00-abc-def-01"}, b"y")


async def test_a_delay_and_a_ttl(mq: Client) -> None:
    await mq.pub("later", b"gone", ttl=0.001)
    await mq.pub("later", b"in a moment", delay=0.02)
    await mq.pub_many("later", [b"now", (None, b"and now")], ttl=60)
    await mq.pub_many("later", [b"much later"], delay=3600)
    async with mq.sub("later", "first") as messages:  # on a fast disk all of that takes less than the one's millisecond
        while (await messages.next(5)).payload != b"in a moment":
            pass
    async with mq.sub("later", "c") as messages:
        found = [await messages.next(5) for _ in range(3)]
        assert {message.payload for message in found} >= {b"now", b"and now", b"in a moment"}
        assert [each["scheduled"] for each in (await mq.describe("later"))["consumers"]] == [1, 1]
    for times in ({"delay": -1.0}, {"ttl": 0.0}, {"delay": 1e12}):
        with pytest.raises(BadArgument):
            await mq.pub("later", b"x", **times)  # type: ignore[arg-type]
        with pytest.raises(BadArgument):
            await mq.pub_many("later", [b"x"], **times)  # type: ignore[arg-type]


async def test_a_full_queue_is_worth_another_try(mq: Client) -> None:
    await mq.create("small", {"backlog_max_messages": 1})
    await mq.pub("small", b"x")
    with pytest.raises(QueueFull) as caught:
        await mq.pub("small", b"y")
    assert caught.value.retryable
    assert (await mq.config("small"))["backlog_max_messages"] == 1
    (message,) = await mq.pull("small", "c")
    await message.ack(sync=True)
    assert await mq.pub("small", b"y") == Receipt(1, duplicate=False)
    assert await mq.seek("small", "c", "1") == 1
    assert await mq.purge("small") == 2


async def test_numbers_go_on_after_a_refusal_of_the_real_broker(mq: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's own size check is switched off, so the broker refuses one numbered publish and answers those behind it."""
    monkeypatch.setattr(Client, "_body_bytes_max", 64 * 1024 * 1024)
    for round_number in range(3):
        payloads = [b"a", bytes(3_000_000), b"b", b"c"]
        results = await asyncio.gather(*(mq.pub("t", payload) for payload in payloads), return_exceptions=True)
        assert isinstance(results[1], PayloadTooLarge)
        first = round_number * 4
        assert [results[0], *results[2:]] == [Receipt(first + n, duplicate=False) for n in range(3)]
        assert await mq.pub("t", b"d") == Receipt(first + 3, duplicate=False)
    assert await mq.offsets("t") == (0, 12)


WRONG_ITEMS = (
    ("a text", TypeError),
    ((b"k", b"x", b"y"), TypeError),
    ((b"two words", b""), BadArgument),
    (b"x" * 3_000_000, PayloadTooLarge),
    (ZeroDivisionError("of the iterable"), ZeroDivisionError),
)


def items_until(count: int, wrong: object) -> Iterator[bytes]:
    for n in range(count):
        yield b"%d" % n
    if isinstance(wrong, Exception):
        raise wrong
    yield wrong  # type: ignore[misc]
    yield b"never asked for"


@pytest.mark.parametrize("count", [0, 1, 256, 1000])
async def test_what_pub_many_got_before_a_wrong_item_is_published_and_has_its_receipts(mq: Client, count: int) -> None:
    """Found by a trial: of 1,000 items before an exception of the iterable 768 were stored, and none had its receipt. When an
    invalid item was the first of a chunk, the call never returned."""
    for number, (wrong, error) in enumerate(WRONG_ITEMS):
        receipts: list[Receipt] = []

        async def publish(receipts: list[Receipt] = receipts, wrong: object = wrong) -> None:
            async for receipt in mq.pub_many("t", items_until(count, wrong)):
                receipts.append(receipt)

        with pytest.raises(error):
            await asyncio.wait_for(publish(), 10)
        assert [receipt.msg_id for receipt in receipts] == list(range(number * count, (number + 1) * count)), wrong


async def test_a_value_goes_and_comes_by_its_codec(mq: Client) -> None:
    await mq.pub_value("t", {"id": 17}, headers={"colour": "red"}, ttl="1d")
    await mq.pub_value("t", "abc", codec=str.encode, key="k")
    assert len(await mq.pub_many("t", toymq.values(range(3)))) == 3
    messages = await mq.pull("t", "c", 5)
    assert [message.value() for message in messages] == [{"id": 17}, b"abc", 0, 1, 2]
    assert (messages[0].headers, messages[1].headers) == ({"content-type": "application/json", "colour": "red"}, {})
    assert messages[1].value(bytes.decode) == "abc"
    with pytest.raises(BadArgument, match="the payload is not JSON"):
        messages[1].value("json")


async def test_a_value_goes_and_comes_as_json(mq: Client) -> None:
    await mq.pub_json("t", {"id": 17, "at": date(2026, 11, 27)}, key="a", headers={"colour": "red"})
    await mq.pub_json("t", [1], headers={"content-type": "application/vnd.list+json"})
    first, second = await mq.pull("t", "c", 2)
    assert first.json() == {"id": 17, "at": "2026-11-27"}
    assert (first.key, first.headers) == (b"a", {"content-type": "application/json", "colour": "red"})
    assert (second.json(), second.headers) == ([1], {"content-type": "application/vnd.list+json"})
    with pytest.raises(TypeError, match="the value is of type object, which JSON does not have"):
        await mq.pub_json("t", object())
    await mq.pub("t", b"\xff")
    (third,) = await mq.pull("t", "c")
    with pytest.raises(BadArgument, match="the payload is not JSON"):
        third.json()


async def test_a_publish_waits_for_room_and_for_its_answer_within_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: waiting for room and waiting for the answer had ``timeout_s`` each, so a call took twice as long."""
    loop, answer = asyncio.get_running_loop(), asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.greet()
        for body in ("a", "b"):
            assert (await peer.line()).startswith("PUB t ")
            await peer.expect(body)
            await answer.wait()
            peer.say(b"OK 0\n")
        await peer.gone()

    monkeypatch.setattr("toymq.link.OUTSTANDING_BYTES_MAX", 1)
    async with following(script) as url, connect(url, timeout_s=600) as mq:
        link, began, deadlines = mq._link, loop.time(), list[float | None]()
        async with asyncio.TaskGroup() as tasks:
            first = tasks.create_task(mq.pub("t", b"a"))
            tasks.create_task(mq.pub("t", b"b"))
            while link._room is None:  # noqa: ASYNC110 (a turn of the loop each)
                await asyncio.sleep(0)
            monkeypatch.setattr(loop, "time", lambda now=loop.time: now() + 40)
            answer.set()
            await first
            while not deadlines:
                await asyncio.sleep(0)
                deadlines = [slot.deadline for slot in link.conversation._unanswered]
            monkeypatch.undo()
        assert deadlines == [pytest.approx(began + 600, abs=20)]
