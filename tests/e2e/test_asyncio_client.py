"""The asyncio client against the real broker on the same loop, and against one that follows a script."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from random import Random

import pytest

import toymq_client as toymq
from tests.support.conversing import message
from tests.support.fake_broker import Peer, following
from tests.support.in_process import InProcess, serving
from tests.support.steps import cancelled_at
from toymq_client import Client, Message, Receipt
from toymq_py.errors import (
    AlreadySubscribed,
    AuthFailed,
    BadArgument,
    BadName,
    Forbidden,
    ModeConflict,
    NoSuchTopic,
    OutOfRange,
    PayloadTooLarge,
    QueueFull,
)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[InProcess]:
    async with serving(tmp_path / "d") as served:
        yield served


@pytest.fixture
async def mq(broker: InProcess) -> AsyncIterator[Client]:
    async with toymq.connect(f"toymq://127.0.0.1:{broker.port}") as client:
        yield client


def connect(url: str, **options: object) -> Client:
    return toymq.connect(url, backoff_min_s=0.001, backoff_max_s=0.01, random=Random(1), **options)  # type: ignore[arg-type]


# -- publishing


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
    with pytest.raises(BadArgument, match="a window"):
        mq.pub_many("t", [], window=0)


async def test_pub_many_raises_where_the_bad_item_stands(mq: Client) -> None:
    receipts = aiter(mq.pub_many("t", [b"a", (b"two words", b""), b"b"]))
    assert await anext(receipts) == Receipt(0, duplicate=False)
    with pytest.raises(BadArgument, match="a key is"):
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
    with pytest.raises(BadName):
        mq.sub("a*", "c")
    with pytest.raises(BadArgument):
        mq.sub("t", "c", window=0)
    with pytest.raises(BadArgument):
        mq.sub("t", "c", start="soon")
    assert await mq.topics() == []


async def test_purge_drops_what_is_there_and_ids_go_on(mq: Client) -> None:
    with pytest.raises(NoSuchTopic):
        await mq.purge("t")
    await mq.create("t", {"backlog_max_messages": "2"})
    for payload in (b"a", b"b"):
        await mq.pub("t", payload)
    with pytest.raises(QueueFull) as caught:
        await mq.pub("t", b"c")
    assert caught.value.retryable
    assert await mq.purge("t") == 2
    assert (await mq.pub("t", b"c")).msg_id == 2


async def test_dead_letters_and_back(mq: Client) -> None:
    for n in range(3):
        await mq.pub("jobs", b"%d" % n, key=f"k{n}", headers={"a": "b"})
    async with mq.sub("jobs", "c") as messages, mq.sub("jobs.dlq", "audit") as letters:
        first, second, third = [await messages.next(5) for _ in range(3)]
        assert await first.dead_letter("broken")
        assert not await first.dead_letter(), "its lease is over"
        assert await mq.nack("jobs", "c", [(1, 2)], dead=True) == 2
        assert (second.id, third.id) == (1, 2)
        found = [await letters.next(5) for _ in range(3)]
        assert [letter.payload for letter in found] == [b"0", b"1", b"2"]
        headers = found[0].headers
        assert (headers["a"], headers["toymq-reason"], headers["toymq-origin-key"]) == ("b", "broken", "k0")
        assert [letter.headers["toymq-reason"] for letter in found[1:]] == ["rejected", "rejected"]
        with pytest.raises(BadArgument, match="no dead-letter topic of its own"):
            await found[0].dead_letter()
        with pytest.raises(Forbidden):
            await mq.pub("jobs.dlq", b"x")
        assert await mq.redrive("jobs.dlq", ids=[(0, 0), (2, 9)], max=1) == 1
        assert await mq.redrive("jobs.dlq", ids=[(0, 0), (2, 9)]) == 1
        assert await mq.redrive("jobs.dlq") == 1
        assert await mq.redrive("jobs.dlq") == 0
        again = [await messages.next(5) for _ in range(3)]
        assert [message.payload for message in again] == [b"0", b"2", b"1"]
        assert again[0].headers == {
            "a": "b", "toymq-origin-key": "k0", "toymq-redrives": "1", "toymq-redrive-consumer": "c",
        }  # fmt: skip
        for message in again:
            await message.ack()


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


# -- consuming


async def test_process_acks_or_gives_back(mq: Client) -> None:
    await mq.pub_many("t", [b"good", b"bad", b"cancelled"])
    async with mq.sub("t", "c") as messages:
        async with (await messages.next(5)).process() as message:
            assert message.payload == b"good"
        with pytest.raises(ZeroDivisionError):
            async with (await messages.next(5)).process(retry_delay=0):
                raise ZeroDivisionError
        with pytest.raises(asyncio.CancelledError):
            async with (await messages.next(5)).process():
                raise asyncio.CancelledError
        again = [await messages.next(5), await messages.next(5)]
        assert sorted((message.payload, message.attempt) for message in again) == [(b"bad", 2), (b"cancelled", 2)]


async def test_auto_ack_acks_when_the_body_ended(mq: Client) -> None:
    await mq.pub_many("t", [b"0", b"1", b"2"])
    async with mq.sub("t", "c", auto_ack=True) as messages:
        async for message in messages:
            if message.id == 2:
                break
    (found,) = (await mq.describe("t"))["consumers"]
    assert (found["last_acked"], found["backlog"]) == (1, 1)


async def test_batches_are_full_or_what_came_in_time(mq: Client) -> None:
    await mq.pub_many("t", [b"x"] * 25)
    sizes = []
    async with mq.sub("t", "c", auto_ack=True) as messages:
        async for batch in messages.batches(max=10, wait=0.01):
            sizes.append(len(batch))
            if sum(sizes) == 25:
                await messages.close()
    assert sizes == [10, 10, 5]


async def test_leases_are_renewed_while_a_handler_runs(broker: InProcess, mq: Client) -> None:
    await mq.pub("t", b"x")
    async with mq.sub("t", "c", visibility=0.15, auto_extend=True) as messages:
        message = await messages.next(5)
        with pytest.raises(toymq.RequestTimeout):
            await messages.next(0.5)
        await message.ack(sync=True)
    assert (await mq.describe("t"))["consumers"][0]["backlog"] == 0


async def test_leases_of_what_waits_for_the_next_iteration_are_renewed(mq: Client) -> None:
    """Else a slow handler gets all that is behind it again and again, until it is dead letters that nobody handled."""
    await mq.pub_many("t", [b"x", b"y"])
    async with mq.sub("t", "c", mode="shared", visibility=0.15, auto_extend=True) as messages:
        await (await messages.next(5)).ack()
        assert await mq.pull("t", "c", wait=0.5) == []
        assert (await messages.next(5)).attempt == 1


async def test_without_renewal_it_comes_again(mq: Client) -> None:
    await mq.pub("t", b"x")
    async with mq.sub("t", "c", visibility=0.05) as messages:
        first, second = await messages.next(5), await messages.next(5)
        assert (first.attempt, second.attempt) == (1, 2)


async def test_two_consumers_of_a_topic_in_one_client(mq: Client) -> None:
    """A session has one subscription a topic: the second gets a connection of its own."""
    await mq.pub("t", b"x")
    async with mq.sub("t", "billing") as billing, mq.sub("t", "audit") as audit:
        for messages in (billing, audit):
            message = await messages.next(5)
            assert message.payload == b"x"
            await message.ack()
        with pytest.raises(AlreadySubscribed):
            mq.sub("t", "audit")
    consumers = (await mq.describe("t"))["consumers"]
    assert {found["consumer"]: found["backlog"] for found in consumers} == {"billing": 0, "audit": 0}


async def test_taken_over_ends_the_iteration_and_is_not_answered(broker: InProcess, mq: Client) -> None:
    async with toymq.connect(f"127.0.0.1:{broker.port}") as other, mq.sub("t", "c") as mine, other.sub("t", "c") as theirs:
        with pytest.raises(toymq.TakenOver) as caught:
            await mine.next(5)
        assert (caught.value.code, caught.value.retryable) == ("TAKEN_OVER", False)
        with pytest.raises(toymq.TakenOver):
            async for _ in mine:
                pass
        await mq.pub("t", b"x")
        assert (await theirs.next(5)).payload == b"x"


async def test_a_deleted_consumer_ends_and_a_moved_one_goes_on(mq: Client) -> None:
    await mq.pub_many("t", [b"0", b"1"])
    async with mq.sub("t", "c") as messages:
        for n in range(2):
            message = await messages.next(5)
            assert message.id == n
            await message.ack()
        assert await mq.seek("t", "c", "1") == 1
        assert (await messages.next(5)).id == 1
        await mq.forget("t", "c")
        with pytest.raises(toymq.ConsumerDeleted):
            await messages.next(5)


async def test_looking_and_arranging(mq: Client) -> None:
    await mq.create("made", {"visibility": 5000})
    assert await mq.config("made", {"dedupe_keys": 7}) == {"visibility": 5000, "dedupe_keys": 7}
    await mq.pub_many("made", [b"%d" % n for n in range(5)])
    assert await mq.offsets("made", at_ms=0) == (0, 5)
    batch = await mq.fetch("made", 1, 2)
    assert (batch.count, batch.next_id) == (2, 3)
    assert (await mq.fetch("made", 5, 1, wait=0.01)).count == 0
    with pytest.raises(OutOfRange) as caught:
        await mq.fetch("made", 6, 1)
    assert caught.value.first_id == 0
    assert [topic["topic"] for topic in await mq.topics("made")] == ["made"]
    assert (await mq.stats())["connections"] >= 1
    assert await mq.ping() > 0
    assert mq.server is not None
    assert mq.server.startswith("toymq")
    assert mq.max_payload == 2 * 1024 * 1024
    async with mq.sub("made", "c") as messages:
        first = await messages.next(5)
        assert await mq.nack("made", "c", [(0, 0), (9, 9)], delay=0) == 1, "9 is not inflight"
        while (again := await messages.next(5)).id != 0:
            pass
        assert again.attempt == 2
        assert await mq.ack("made", "c", [(0, 4)], sync=True) == 5
        assert not await first.extend()
    assert await mq.delete("made") == 5
    with pytest.raises(NoSuchTopic):
        await mq.describe("made")


async def test_a_waiting_fetch_holds_nobody_else(mq: Client) -> None:
    await mq.create("t")
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(mq.fetch("t", 0, 1, wait=20))
        await asyncio.sleep(0)
        assert (await mq.pub("t", b"x")).msg_id == 0
    assert waiting.result().count == 1


# -- leaving


async def test_drain_waits_for_handlers_and_gives_the_rest_back(broker: InProcess, mq: Client) -> None:
    await mq.pub_many("t", [b"%d" % n for n in range(10)])
    messages = await mq.sub("t", "c")
    running = [await messages.next(5) for _ in range(2)]

    async def handle(message: Message) -> None:
        await mq.ping()
        await message.ack()

    async with asyncio.TaskGroup() as tasks:
        draining = tasks.create_task(mq.drain(5))
        for message in running:
            tasks.create_task(handle(message))
    assert draining.result()
    assert [message async for message in messages] == []
    (found,) = (await mq.describe("t"))["consumers"]
    assert (found["last_acked"], found["ready"], found["inflight"], found["sessions"]) == (1, 8, 0, 0)
    async with mq.sub("t", "c") as later:
        assert (await later.next(5)).id == 2, "after a drain the client works on"


async def test_drain_says_when_a_handler_was_too_slow(mq: Client) -> None:
    await mq.pub("t", b"x")
    messages = await mq.sub("t", "c")
    await messages.next(5)
    assert not await mq.drain(0.02)
    assert (await mq.describe("t"))["consumers"][0]["ready"] == 1


async def test_leaving_sends_what_was_acked(broker: InProcess) -> None:
    async with toymq.connect(f"127.0.0.1:{broker.port}") as mq:
        await mq.pub("t", b"x")
        messages = await mq.sub("t", "c")
        await (await messages.next(5)).ack()
        await mq.close()
        await mq.close()
        with pytest.raises(toymq.ClientClosed):
            await mq.ping()
        with pytest.raises(toymq.ClientClosed):
            await messages.next(1)
    async with toymq.connect(f"127.0.0.1:{broker.port}") as mq:
        assert (await mq.describe("t"))["consumers"][0]["backlog"] == 0


async def test_close_does_not_hang_on_a_broker_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toymq_client.link.GOODBYE_S", 0.02)

    async def script(peer: Peer) -> None:
        await peer.greet()
        await peer.gone()

    async with following(script) as url:
        mq = await connect(url)
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(_code_of(mq.pub("t", b"x")))
            await asyncio.sleep(0)
            await mq.close()
        assert waiting.result() == "CLIENT_CLOSED"


async def _code_of(call: Awaitable[object]) -> str:
    try:
        await call
    except toymq.ToymqError as error:
        return error.code
    return "no error"


# -- outages


async def test_a_publish_survives_a_lost_connection() -> None:
    async def dies(peer: Peer) -> None:
        await peer.greet()
        assert (await peer.line()).endswith(" 1 seq=0")
        await peer.expect("a")
        peer.reset()

    async def lives(peer: Peer) -> None:
        await peer.greet()
        assert (await peer.line()).endswith(" 1 seq=0")
        await peer.expect("a")
        peer.say(b"DUP 4\n")
        await peer.gone()

    async with following(dies, lives) as url, connect(url) as mq:
        assert await mq.pub("t", b"a") == Receipt(4, duplicate=True)


async def test_one_warning_an_outage_and_never_a_token(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "toymq_client")

    async def dies(peer: Peer) -> None:
        await peer.expect("HELLO 1 auth=s3cret name=me")
        peer.say(b"HELLO 1 server=fake/1 max_payload=100\n")
        await peer.expect("PING")
        peer.reset()

    async def refuses(peer: Peer) -> None:
        await peer.greet(b"ERR TOO_MANY_CONNECTIONS later\n")

    async def lives(peer: Peer) -> None:
        await peer.greet()
        await peer.expect("PING")
        peer.say(b"PONG\n")
        await peer.gone()

    events: list[object] = []
    options = {"name": "me", "on_event": events.append}
    async with following(dies, refuses, lives) as url, connect(f"toymq://s3cret@{url}", **options) as mq:
        await mq.ping()
    warned = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warned) == 1
    assert "trying again until it is back" in warned[0]
    assert "s3cret" not in caplog.text
    assert [type(event) for event in events] == [toymq.Connected, toymq.Disconnected, toymq.Connected]
    assert not logging.getLogger("toymq_client").handlers


async def test_what_is_not_safe_to_repeat_says_so() -> None:
    async def dies(peer: Peer) -> None:
        await peer.greet()
        await peer.expect("DELETE t")
        peer.reset()

    async def lives(peer: Peer) -> None:
        await peer.greet()
        await peer.gone()

    connected = asyncio.Semaphore(0)

    def on_event(event: object) -> None:
        if isinstance(event, toymq.Connected):
            connected.release()

    async with following(dies, lives) as url, connect(url, on_event=on_event) as mq:
        await connected.acquire()
        with pytest.raises(toymq.ConnectionLost, match="outcome is unknown") as caught:
            await mq.delete("t")
        assert caught.value.retryable
        await connected.acquire()


async def test_a_time_out_says_what_was_awaited_and_why() -> None:
    async def silent(peer: Peer) -> None:
        await peer.greet()
        await peer.gone()

    async with following(silent) as url, connect(url, timeout_s=0.05) as mq:
        with pytest.raises(TimeoutError, match=r"no answer within 0.05 s: waited for the reply to PING$"):
            await mq.ping()
        with pytest.raises(toymq.RequestTimeout, match="waited for the OK of a publish to t"):
            await mq.pub("t", b"x")
        with pytest.raises(toymq.RequestTimeout, match="waited for the OK of SUB t c"):
            await mq.sub("t", "c")
        await mq.close()


async def test_several_hosts_are_tried_in_turn() -> None:
    async def lives(peer: Peer) -> None:
        await peer.greet()
        await peer.gone()

    async with following(lives) as url, connect(["127.0.0.1:1", url]) as mq:
        assert mq.connected


async def test_nobody_there_is_said_at_once_or_waited_for() -> None:
    with pytest.raises(toymq.ConnectFailed, match=r"no broker at 127\.0\.0\.1:1: ") as caught:
        await connect("127.0.0.1:1")
    assert isinstance(caught.value, ConnectionError)
    assert isinstance(caught.value.__cause__, ConnectionRefusedError)
    with pytest.raises(toymq.ConnectFailed):
        await connect("127.0.0.1:1", wait_s=0.02)

    async def refuses(peer: Peer) -> None:
        await peer.greet(b"ERR SHUTTING_DOWN soon\n")

    async def lives(peer: Peer) -> None:
        await peer.greet()
        await peer.gone()

    async with following(refuses, lives) as url, connect(url, wait_s=10) as mq:
        assert mq.connected


async def test_a_token_that_is_not_accepted_ends_it() -> None:
    async def refuses(peer: Peer) -> None:
        await peer.greet(b"ERR AUTH_FAILED no\n")

    async def dies(peer: Peer) -> None:
        await peer.greet()
        await peer.expect("SUB t c window=1024")
        peer.say(b"OK 1\n")
        peer.reset()

    async with following(refuses) as url:
        with pytest.raises(AuthFailed):
            await connect(url, wait_s=10)
    async with following(dies, refuses) as url, connect(url) as mq:
        messages = await mq.sub("t", "c")
        with pytest.raises(AuthFailed):
            await messages.next(5)
        with pytest.raises(AuthFailed):
            await mq.ping()


async def test_something_else_listens_there() -> None:
    async def web(peer: Peer) -> None:
        await peer.greet(b"HTTP/1.1 400 Bad Request\r\n")

    async with following(web) as url:
        with pytest.raises(toymq.ProtocolViolation, match="no toymq broker"):
            await connect(url)


async def test_a_refusal_reaches_its_caller_alone() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        for _ in range(3):
            await peer.line()
            await peer.line()
        peer.say(b"OK 0\nERR QUEUE_FULL later\nERR OUT_OF_SEQUENCE behind it\n")
        assert (await peer.line()).endswith("seq=1")
        await peer.expect("c")
        peer.say(b"OK 1\n")
        await peer.gone()

    async with following(script) as url, connect(url) as mq:
        results = await asyncio.gather(*(mq.pub("t", payload) for payload in (b"a", b"b", b"c")), return_exceptions=True)
    assert isinstance(results[1], QueueFull)
    assert results[1].retryable
    assert [results[0], results[2]] == [Receipt(0, duplicate=False), Receipt(1, duplicate=False)]


async def test_publishers_wait_while_too_much_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toymq_client.link.OUTSTANDING_BYTES_MAX", 10)
    seen: list[str] = []

    async def script(peer: Peer) -> None:
        await peer.greet()
        for number in range(4):
            await peer.line()
            seen.append(await peer.line())
            assert len(tasks_waiting()) >= 4 - number - 1
            peer.say(b"OK %d\n" % number)
        await peer.gone()

    waiting: list[asyncio.Task[Receipt]] = []

    def tasks_waiting() -> list[asyncio.Task[Receipt]]:
        return [task for task in waiting if not task.done()]

    async with following(script) as url, connect(url) as mq, asyncio.TaskGroup() as tasks:
        waiting += [tasks.create_task(mq.pub("t", b"%d" % n * 10)) for n in range(4)]
    assert seen == [str(n) * 10 for n in range(4)], "in the order of asking"


# -- work sharing


async def inflight(mq: Client, topic: str, consumer: str) -> int:
    (found,) = [one for one in (await mq.describe(topic))["consumers"] if one["consumer"] == consumer]
    count: int = found["inflight"]
    return count


async def polling(served: InProcess, count: int) -> None:
    """So many PULLs wait in the broker."""
    async with asyncio.timeout(10):
        while sum(session._deliveries.pull is not None for session in served.server._sessions) < count:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def connections(served: InProcess, count: int) -> None:
    """No more sessions than these are left."""
    async with asyncio.timeout(10):
        while len(served.server._sessions) > count:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_nothing_waits_behind_a_pull_that_waits(broker: InProcess, mq: Client) -> None:
    async with asyncio.TaskGroup() as tasks:
        first = tasks.create_task(mq.pull("a", "c", 5, wait=60))
        second = tasks.create_task(mq.pull("b.*", "c", 5, wait=60))
        await polling(broker, 2)
        assert await mq.ping() > 0
        await mq.pub("b.x", b"1")
        assert [each.topic for each in await second] == ["b.x"]
        assert not first.done()
        await mq.pub("a", b"2")
        (message,) = await first
        await message.ack()
    assert (await mq.describe("a"))["consumers"][0]["mode"] == "shared"
    assert await mq.pull("a", "c", wait=0.001) == []
    assert len(broker.server._sessions) == 3, "connections of pulls that are answered serve the next ones"


async def test_a_pull_that_is_cancelled_while_it_waits_takes_nothing(broker: InProcess, mq: Client) -> None:
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(mq.pull("jobs", "c", wait=3600))
        await polling(broker, 1)
        waiting.cancel()
    await connections(broker, 1)
    await mq.pub("jobs", b"x")
    (message,) = await mq.pull("jobs", "c")
    assert message.attempt == 1, "the one that left was given nothing"


async def test_a_pull_that_is_cancelled_anywhere_loses_nothing(mq: Client) -> None:
    await mq.pub_many("jobs", [b"0", b"1"])
    for step in range(60):
        cancelled = await cancelled_at(mq.pull("jobs", "c", 2, wait=5, visibility=3600), step)
        found: list[Message] = []
        async with asyncio.timeout(10):
            while cancelled and len(found) < 2:
                found += await mq.pull("jobs", "c", 2, wait=5, visibility=3600)
        assert sorted(each.id for each in found) == ([0, 1] if cancelled else [])
        if not cancelled:
            break
        for each in found:
            await each.nack(0)
    assert 0 < step < 59
    assert await inflight(mq, "jobs", "c") == 2


async def test_what_comes_for_a_pull_that_was_left_is_given_back() -> None:
    asked = asyncio.Event()
    returned = asyncio.Event()

    async def main(peer: Peer) -> None:
        await peer.greet()
        await peer.expect("NACK a.x c 3-4 delay=0", "NACK a.y c 9 delay=0")
        peer.say(b"OK 2\nOK 1\n")
        returned.set()
        await peer.gone()

    async def pulling(peer: Peer) -> None:
        await peer.greet()
        await peer.expect("PULL a.* c 5 wait=60000")
        asked.set()
        await peer.expect("QUIT")
        peer.say(message(3, topic="a.x") + message(4, topic="a.x") + message(9, topic="a.y") + b"OK 3\nOK 0\n")

    async with following(main, pulling) as url, connect(url) as mq, asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(mq.pull("a.*", "c", 5, wait=60))
        await asked.wait()
        waiting.cancel()
        await returned.wait()


async def test_a_wait_goes_on_after_a_lost_connection() -> None:
    async def main(peer: Peer) -> None:
        await peer.greet()
        await peer.gone()

    async def lost(peer: Peer) -> None:
        await peer.greet()
        await peer.expect("PULL t c 1 wait=60000")
        peer.reset()

    async def back(peer: Peer) -> None:
        await peer.greet()
        words = (await peer.line()).split("=")
        assert words[0] == "PULL t c 1 wait"
        assert 0 < int(words[1]) <= 60_000, "what is left of it"
        peer.say(message(7) + b"OK 1\n")
        await peer.gone()

    async with following(main, lost, back) as url, connect(url) as mq:
        assert [each.id for each in await mq.pull("t", "c", wait=60)] == [7]


async def test_shared_workers_and_a_pull_beside_them(broker: InProcess, mq: Client) -> None:
    await mq.pub_many("jobs", [b"%d" % n for n in range(6)])
    async with connect(f"127.0.0.1:{broker.port}") as other:
        mine, others = (client.sub("jobs", "w", mode="shared", window=2) for client in (mq, other))
        async with mine as here, others as there:
            held = [await messages.next(5) for messages in (here, there) for _ in range(2)]
            while len(held) < 6:
                held += await mq.pull("jobs", "w", 9, wait=5)
            assert sorted(each.id for each in held) == list(range(6)), "each is with one of them"
            for one in held:
                await one.ack(sync=True)
            async with connect(f"127.0.0.1:{broker.port}") as third:
                with pytest.raises(ModeConflict):
                    await third.sub("jobs", "w", mode="exclusive")
        assert (await mq.describe("jobs"))["consumers"][0]["backlog"] == 0


async def test_patterns_that_overlap(mq: Client) -> None:
    async with mq.sub("orders.*", "c") as some, mq.sub("orders.>", "d") as all_of_them, mq.sub("orders.eu", "e") as one:
        await mq.pub("orders.eu", b"x")
        await mq.pub("orders.eu.north", b"y")
        assert [(await messages.next(5)).topic for messages in (some, one)] == ["orders.eu", "orders.eu"]
        assert {(await all_of_them.next(5)).topic for _ in range(2)} == {"orders.eu", "orders.eu.north"}
        with pytest.raises(AlreadySubscribed):
            mq.sub("orders.*", "c")


async def test_a_delay_and_a_ttl(mq: Client) -> None:
    await mq.pub("later", b"in a moment", delay=0.02)
    await mq.pub_many("later", [b"now", (None, b"and now")], ttl=60)
    await mq.pub_many("later", [b"much later"], delay=3600)
    await mq.pub("later", b"gone", ttl=0.001)
    async with mq.sub("later", "c") as messages:
        found = [await messages.next(5) for _ in range(3)]
        assert {message.payload for message in found} >= {b"now", b"and now", b"in a moment"}
        (consumer,) = (await mq.describe("later"))["consumers"]
        assert consumer["scheduled"] == 1
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


# -- what this broker has not yet, against one that follows the contract


async def test_pull_leases_and_acks_on_the_other_connection() -> None:
    """A waiting PULL holds the replies behind it, so it has a connection of its own."""

    async def main(peer: Peer) -> None:
        await peer.greet()
        await peer.expect("ACK t c 3-4")
        peer.say(b"OK 2\n")
        await peer.gone()

    async def pulling(peer: Peer) -> None:
        await peer.greet()
        await peer.expect("PULL t c 5 wait=1000 visibility=2000")
        peer.say(message(3) + message(4) + b"OK 2\n")
        await peer.expect("PULL t c 1")
        peer.reset()

    async def back(peer: Peer) -> None:
        await peer.greet()
        await peer.expect("PULL t c 2")
        peer.say(b"OK 0\n")
        await peer.gone()

    async with following(main, pulling, back) as url, connect(url) as mq:
        found = await mq.pull("t", "c", 5, wait=1, visibility=2)
        assert [each.id for each in found] == [3, 4]
        for each in found:
            await each.ack()
        with pytest.raises(toymq.ConnectionLost):
            await mq.pull("t", "c")
        assert await mq.pull("t", "c", 2) == []


async def test_a_pattern_and_a_topic_that_it_covers() -> None:
    async def main(peer: Peer) -> None:
        await peer.greet()
        await peer.expect("SUB orders.* c window=1024 mode=shared")
        peer.say(b"OK 2\n" + message(0, topic="orders.eu") + message(7, topic="orders.us"))
        await peer.expect("ACK orders.eu c 0", "ACK orders.us c 7", "UNSUB orders.* c")
        peer.say(b"OK 1\nOK 1\nOK 0\n")
        await peer.gone()

    async def other(peer: Peer) -> None:
        await peer.greet()
        await peer.expect("SUB orders.eu d window=1024")
        peer.say(b"OK 1\n" + message(0, topic="orders.eu"))
        await peer.expect("UNSUB orders.eu d")
        peer.say(b"OK 0\n")
        await peer.gone()

    async with following(main, other) as url, connect(url) as mq, mq.sub("orders.*", "c", mode="shared") as messages:
        async with mq.sub("orders.eu", "d") as others:
            assert (await others.next(5)).topic == "orders.eu"
        for topic in ("orders.eu", "orders.us"):
            delivery = await messages.next(5)
            assert delivery.topic == topic
            await delivery.ack()


async def test_dead_letters_and_renewals_as_the_contract_has_them() -> None:
    renewed, last_renewed = asyncio.Event(), asyncio.Event()

    async def until(peer: Peer, wanted: str, before: str = "") -> None:
        """Renewals come by the clock: the one before may come again."""
        while (line := await peer.line()) != wanted:
            assert line == before
            peer.say(b"OK 1\n")
        peer.say(b"OK 1\n")

    async def script(peer: Peer) -> None:
        await peer.greet()
        await until(peer, "SUB t c window=1024 visibility=60")
        peer.say(message(0) + message(1))
        await until(peer, "TOUCH t c 0-1 visibility=60", "TOUCH t c 0 visibility=60")
        renewed.set()
        await until(peer, "NACK t c 0 dead=1 reason=poison", "TOUCH t c 0-1 visibility=60")
        await until(peer, "TOUCH t c 1 visibility=60", "TOUCH t c 0-1 visibility=60")
        last_renewed.set()
        await until(peer, "QUIT", "TOUCH t c 1 visibility=60")

    async with following(script) as url:
        mq = await connect(url)
        messages = await mq.sub("t", "c", visibility=0.06, auto_extend=True)
        poison, _ = await messages.next(5), await messages.next(5)
        async with asyncio.timeout(10):
            await renewed.wait()
            await poison.dead_letter("poison")
            await last_renewed.wait()
        await mq.close()


async def test_a_delayed_publish_as_the_contract_has_it() -> None:
    async def script(peer: Peer) -> None:
        await peer.greet()
        line = await peer.line()
        assert line.split(" ")[4:] == ["hdr=5", "delay=1500", "ttl=60000", "seq=0"]
        await peer.expect("a: b", "x")
        peer.say(b"OK 0\n")
        await peer.gone()

    async with following(script) as url, connect(url) as mq:
        assert (await mq.pub("t", b"x", headers={"a": "b"}, delay=1.5, ttl=60)).msg_id == 0


# -- cancellation


async def _use(messages: toymq.Subscription, call: Callable[[Message], Awaitable[object]]) -> None:
    await call(await messages.next(5))


async def _iterate(mq: Client) -> None:
    async with mq.sub("t", "other") as messages:
        async for message in messages:
            await message.ack()
            break


async def _publish_many(mq: Client) -> None:
    async for _ in mq.pub_many("many", [b"x"] * 30, window=4):
        pass


CALLS: dict[str, Callable[[Client, toymq.Subscription], Awaitable[object]]] = {
    "pub": lambda mq, _: mq.pub("t", b"x"),
    "pub_many": lambda mq, _: _publish_many(mq),
    "ping": lambda mq, _: mq.ping(),
    "describe": lambda mq, _: mq.describe("t"),
    "fetch": lambda mq, _: mq.fetch("t", 0, 1),
    "fetch, waiting": lambda mq, _: mq.fetch("t", 0, 1, wait=1),
    "pull": lambda mq, _: mq.pull("t", "puller", 5),
    "sub": lambda mq, _: _iterate(mq),
    "next": lambda _, messages: messages.next(5),
    "ack, synced": lambda _, messages: _use(messages, lambda message: message.ack(sync=True)),
    "nack": lambda _, messages: _use(messages, lambda message: message.nack(0)),
    "extend": lambda _, messages: _use(messages, lambda message: message.extend()),
    "drain of the subscription": lambda _, messages: messages.drain(5),
    "close of the subscription": lambda _, messages: messages.close(),
}


async def test_connecting_that_is_cancelled_leaves_nothing(broker: InProcess) -> None:
    before = asyncio.all_tasks()
    for step in range(60):
        mq = connect(f"127.0.0.1:{broker.port}")
        cancelled = await cancelled_at(mq.open(), step)
        if not cancelled:
            assert await mq.ping() > 0
        await mq.close()
        if left := asyncio.all_tasks() - before:
            await asyncio.wait(left, timeout=5)
        with pytest.raises(toymq.ClientClosed):
            await mq.open()
        if not cancelled:
            break
    assert 0 < step < 59


@pytest.mark.parametrize("name", CALLS)
async def test_a_call_that_is_cancelled_leaves_the_connection_usable(mq: Client, name: str) -> None:
    """At each of its awaits: no reply is taken for another's, nothing that came is lost, nobody hangs."""
    await mq.pub_many("t", [b"%d" % n for n in range(50)])
    for step in range(60):
        messages = await mq.sub("t", "c", visibility=30)
        cancelled = await cancelled_at(CALLS[name](mq, messages), step)  # type: ignore[arg-type]
        assert (await mq.pub("check", b"x", key=f"{step}")).msg_id == step
        assert (await mq.describe("check"))["next_id"] == step + 1
        await messages.close()
        (found,) = [one for one in (await mq.describe("t"))["consumers"] if one["consumer"] == "c"]
        async with mq.sub("t", "c") as again:
            assert (await again.next(5)).id == (found["last_acked"] + 1 if found["has_acked"] else 0)
        if not cancelled:
            break
    else:
        pytest.fail(f"{name} has more than 60 awaits")
    if name not in ("next", "close of the subscription"):
        assert step > 0, "it was cancelled at least once"


# -- found by reading


async def test_a_short_time_out_behind_a_long_one() -> None:
    async def main(peer: Peer) -> None:
        await peer.greet()
        await peer.gone()

    async def waiting(peer: Peer) -> None:
        await peer.greet()
        await peer.gone()

    async with following(main, waiting, waiting) as url:
        mq = await connect(url, timeout_s=0.05)
        async with asyncio.TaskGroup() as tasks:
            long = tasks.create_task(_code_of(mq.pull("t", "c", wait=1000)))
            await asyncio.sleep(0)
            with pytest.raises(toymq.RequestTimeout):
                await mq.pull("t", "c")
            await mq.close()
        assert long.result() == "CLIENT_CLOSED"


async def test_who_waits_for_room_goes_on_when_the_connection_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toymq_client.link.SAID_MAX", 1)

    async def dies(peer: Peer) -> None:
        await peer.greet()
        await peer.expect("PING")
        peer.reset()

    async def lives(peer: Peer) -> None:
        await peer.greet()
        assert {await peer.line(), await peer.line(), await peer.line()} > {"x", "PING"}
        peer.say(b"PONG\nOK 0\n")
        await peer.gone()

    async with following(dies, lives) as url, connect(url) as mq, asyncio.TaskGroup() as tasks:
        tasks.create_task(mq.ping())
        await asyncio.sleep(0)
        receipt = tasks.create_task(mq.pub("t", b"x"))
    assert receipt.result().msg_id == 0


async def test_numbers_go_on_after_a_refusal_of_the_real_broker(mq: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client would not send so much; made to, it hears what the broker says to those behind it."""
    monkeypatch.setattr(Client, "_body_bytes_max", 64 * 1024 * 1024)
    for round_number in range(3):
        payloads = [b"a", bytes(3_000_000), b"b", b"c"]
        results = await asyncio.gather(*(mq.pub("t", payload) for payload in payloads), return_exceptions=True)
        assert isinstance(results[1], PayloadTooLarge)
        first = round_number * 4
        assert [results[0], *results[2:]] == [Receipt(first + n, duplicate=False) for n in range(3)]
        assert await mq.pub("t", b"d") == Receipt(first + 3, duplicate=False)
    assert await mq.offsets("t") == (0, 12)
