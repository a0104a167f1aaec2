"""The asyncio client's subscriptions."""

import asyncio
import json
from contextlib import suppress
from pathlib import Path

import pytest

import toymq
from tests.support.in_process import InProcess, serving
from toymq import Client
from toymq_py.errors import AlreadySubscribed, ConfigError


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


@pytest.mark.parametrize("auto_ack", [False, True])
async def test_what_a_handler_gave_back_is_not_acked_behind_it(mq: Client, auto_ack: bool) -> None:
    """Found: the ack at the end of the block undid the handler's nack: the message was gone, without an error."""
    await mq.pub("t", b"x")
    async with mq.sub("t", "c", auto_ack=auto_ack) as messages:
        for attempt in (1, 2, 3):
            message = await messages.next(5)
            assert message.attempt == attempt
            if auto_ack:
                await message.nack(0)
            else:
                async with message.process():
                    await message.nack(0)
        message = await messages.next(5)
        with suppress(ZeroDivisionError):
            async with message.process():
                await message.dead_letter("no")
                raise ZeroDivisionError
    (letter,) = await mq.pull("t.dlq", "audit", wait=5)
    assert letter.headers["toymq-reason"] == "no"


class Unspeakable(ValueError):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Whatever(Exception):
    """An exception of this module: its qualified name and its text go into the dead letter."""


HOSTILE = "no such\ntemplate:\x00\x1b[31m \ud800" + "x" * (1 << 20)


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (ValueError("no such template: x.html"), "ValueError", "no such template: x.html"),
        (Unspeakable(), f"{__name__}.Unspeakable", None),
        (Whatever(HOSTILE), f"{__name__}.Whatever", "no such template:  [31m \\ud800xxxx"),
    ],
)
async def test_an_exception_is_in_the_dead_letter(mq: Client, error: Exception, kind: str, text: str | None) -> None:
    await mq.create("t", {"max_attempts": 2})
    await mq.pub("t", b"bad")
    async with mq.sub("t", "c") as messages, mq.sub("t.dlq", "audit") as letters:
        for _ in range(2):
            with pytest.raises(type(error)):
                async with (await messages.next(5)).process(retry_delay=0):
                    raise error
        headers = (await letters.next(5)).headers
    assert (headers["toymq-reason"], headers["toymq-attempts"], headers["toymq-error-type"]) == ("max-attempts", "2", kind)
    said = headers.get("toymq-error")
    assert said == text or (said is not None and text is not None and said.startswith(text) and len(said) <= 1024)
    traceback = json.loads(headers["toymq-traceback"])
    assert traceback.endswith("raise error")
    assert "in test_an_exception_is_in_the_dead_letter" in traceback
    assert int(headers["toymq-failed-at"]) > 0


async def test_some_exceptions_are_dead_at_once_and_a_reason_is_any_text(mq: Client) -> None:
    await mq.pub_many("t", [b"0", b"1", b"2", b"3"])
    async with mq.sub("t", "c") as messages, mq.sub("t.dlq", "audit") as letters:
        with pytest.raises(UnicodeDecodeError):
            async with (await messages.next(5)).process(dead_on=(ValueError, KeyError)):
                b"\xff".decode()
        with pytest.raises(ZeroDivisionError):
            async with (await messages.next(5)).process(dead_on=ValueError, retry_delay=0):
                raise ZeroDivisionError
        assert await (await messages.next(5)).dead_letter("no such template: x.html")
        assert await mq.nack("t", "c", [(3, 3)], dead=True, reason="päpstlich\n100 %", error=KeyError("x")) == 1
        found = [(await letters.next(5)) for _ in range(3)]
        with pytest.raises(ValueError, match="again"):
            async with found[0].process(dead_on=ValueError, retry_delay=0):  # a letter has no letters
                raise ValueError("again")
        assert (await letters.next(5)).attempt == 2
    told = [tuple(letter.headers.get(f"toymq-{name}") for name in ("reason", "error-type", "error")) for letter in found]
    assert told == [
        ("rejected", "UnicodeDecodeError", "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
        ("no such template: x.html", None, None),
        ("päpstlich 100 %", "KeyError", "'x'"),
    ]


async def test_what_an_exception_says_may_be_kept_from_the_broker(broker: InProcess) -> None:
    async with toymq.connect(f"toymq://127.0.0.1:{broker.port}", describe_errors=False) as mq, mq.sub("t", "c") as messages:
        await mq.pub("t", b"bad")
        with pytest.raises(ValueError, match="secret"):
            async with (await messages.next(5)).process(dead_on=ValueError):
                raise ValueError("the secret is 7")
        async with mq.sub("t.dlq", "audit") as letters:
            headers = (await letters.next(5)).headers
    assert headers["toymq-error-type"] == "ValueError"
    assert not {"toymq-error", "toymq-traceback"} & headers.keys()


async def test_auto_ack_acks_the_last_message_when_the_block_ends_without_an_exception(mq: Client) -> None:
    """Found by a trial: the last message of ``next()``, or of a loop with ``break``, was redelivered until it was a dead
    letter."""
    await mq.pub_many("t", [b"0", b"1", b"2", b"3", b"4"])
    async with mq.sub("t", "c", auto_ack=True) as messages:
        await messages.next(5)
        async for message in messages:
            if message.id == 1:
                break
    (found,) = (await mq.describe("t"))["consumers"]
    assert (found["last_acked"], found["backlog"]) == (1, 3)
    async with mq.sub("t", "c", auto_ack=True) as messages:
        async for batch in messages.batches(max=2, wait=5):
            assert [message.id for message in batch] == [2, 3]
            break

    async def fail() -> None:
        async with mq.sub("t", "c", auto_ack=True) as messages:
            assert (await messages.next(5)).id == 4
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    (found,) = (await mq.describe("t"))["consumers"]
    assert (found["last_acked"], found["backlog"]) == (3, 1), "the exception's message comes again"


async def test_auto_ack_acks_nothing_that_another_task_handles(mq: Client) -> None:
    """Found: the second of two tasks acked the message that the first one still worked on; when the first failed, its message
    was gone."""
    await mq.pub_many("t", [b"0", b"1"])
    taken, proceed = asyncio.Event(), asyncio.Event()
    async with mq.sub("t", "c", auto_ack=True) as messages:

        async def handle() -> None:
            assert (await messages.next(5)).id == 0
            taken.set()
            await proceed.wait()
            raise ZeroDivisionError

        async def ask_meanwhile() -> None:
            await taken.wait()
            try:
                with pytest.raises(ConfigError, match="another task still has the last one of t: iterate in one task"):
                    await messages.next(5)
            finally:
                proceed.set()

        outcomes = await asyncio.gather(handle(), ask_meanwhile(), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [ZeroDivisionError, type(None)]
        assert (await messages.next(5)).id == 1
    assert (await mq.describe("t"))["consumers"][0]["backlog"] == 1
    async with mq.sub("t", "c") as again:
        assert (await again.next(5)).id == 0


async def test_auto_ack_takes_a_task_for_each_next(mq: Client) -> None:
    """A caller may run each ``next`` in a task of its own: ``asyncio.wait_for`` does before Python 3.12."""
    await mq.pub_many("t", [b"0", b"1"])
    async with mq.sub("t", "c", auto_ack=True) as messages:
        for msg_id in range(2):
            (message,) = await asyncio.gather(messages.next(5))
            assert message.id == msg_id
        with pytest.raises(TimeoutError):
            await asyncio.gather(messages.next(0))
    assert (await mq.describe("t"))["consumers"][0]["backlog"] == 0


async def test_pub_many_that_nothing_awaits_warns_that_nothing_was_published(mq: Client) -> None:
    with pytest.warns(RuntimeWarning, match="pub_many to t was dropped before it published anything: await it, or iterate it"):
        mq.pub_many("t", [b"0"])


async def test_batches_are_full_or_what_came_in_time(mq: Client) -> None:
    await mq.pub_many("t", [b"x"] * 25)
    sizes = []
    async with mq.sub("t", "c", auto_ack=True) as messages:
        async for batch in messages.batches(max=10, wait=0.01):
            sizes.append(len(batch))
            if sum(sizes) == 25:
                await messages.close()
    assert sizes == [10, 10, 5]


@pytest.mark.parametrize("auto_ack", [False, True])
async def test_what_a_cancelled_batch_had_collected_comes_with_the_next_call(mq: Client, auto_ack: bool) -> None:
    """Found: with ``auto_ack`` the first message of a cancelled batch was acked although no handler ever had it; without, all
    of them waited for their leases to end."""
    await mq.pub_many("t", [b"0", b"1", b"2"])
    async with mq.sub("t", "c", auto_ack=auto_ack) as messages:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await anext(messages.batches(max=10, wait=60))
        assert [((got := await messages.next(5)).id, got.attempt) for _ in range(3)] == [(0, 1), (1, 1), (2, 1)]
    (found,) = (await mq.describe("t"))["consumers"]
    assert found["backlog"] == (0 if auto_ack else 3)


async def test_what_a_cancelled_batch_had_collected_is_not_acked_at_the_end(mq: Client) -> None:
    await mq.pub("t", b"0")
    async with mq.sub("t", "c", auto_ack=True) as messages:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await anext(messages.batches(max=10, wait=60))
    assert (await mq.describe("t"))["consumers"][0]["backlog"] == 1


async def test_leases_are_renewed_while_a_handler_runs(broker: InProcess, mq: Client) -> None:
    await mq.pub("t", b"x")
    async with mq.sub("t", "c", visibility=0.5, auto_extend=True) as messages:
        message = await messages.next(5)
        with pytest.raises(toymq.RequestTimeout):
            await messages.next(1.2)
        await message.ack(sync=True)
    assert (await mq.describe("t"))["consumers"][0]["backlog"] == 0


async def test_leases_of_what_waits_for_the_next_iteration_are_renewed(mq: Client) -> None:
    """Messages that wait behind a slow handler would otherwise be redelivered until they are dead letters that were never
    handled."""
    await mq.pub_many("t", [b"x", b"y"])
    async with mq.sub("t", "c", mode="shared", visibility=0.5, auto_extend=True) as messages:
        await (await messages.next(5)).ack()
        assert await mq.pull("t", "c", wait=1.2) == []
        assert (await messages.next(5)).attempt == 1


async def test_without_renewal_it_comes_again(mq: Client) -> None:
    await mq.pub("t", b"x")
    async with mq.sub("t", "c", visibility=0.05) as messages:
        first, second = await messages.next(5), await messages.next(5)
        assert (first.attempt, second.attempt) == (1, 2)


async def test_two_consumers_of_a_topic_in_one_client(mq: Client) -> None:
    """A session may have one subscription per topic: the second one gets a connection of its own."""
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


async def test_a_seek_under_a_handler_warns_of_no_lease(mq: Client, caplog: pytest.LogCaptureFixture) -> None:
    await mq.pub("t", b"0")
    async with mq.sub("t", "c") as messages:
        held = await messages.next(5)
        await mq.seek("t", "c", "earliest")
        again = await messages.next(5)
        assert (again.id, again.attempt) == (held.id, 1)
        await again.ack()
    assert not caplog.records


async def test_a_topic_of_a_pattern_goes_on_from_where_its_consumer_was_moved(
    mq: Client, caplog: pytest.LogCaptureFixture
) -> None:
    await mq.pub_many("moved.a", [b"0", b"1"])
    async with mq.sub("moved.*", "c") as messages:
        for n in range(2):
            message = await messages.next(5)
            assert message.id == n
            await message.ack()
        for target in (1, "earliest"):
            await mq.seek("moved.a", "c", target)
            while (message := await messages.next(5)).id < 1:
                await message.ack()
            await message.ack()
    assert not caplog.records


async def test_patterns_that_overlap(mq: Client) -> None:
    async with mq.sub("orders.*", "c") as some, mq.sub("orders.>", "d") as all_of_them, mq.sub("orders.eu", "e") as one:
        await mq.pub("orders.eu", b"x")
        await mq.pub("orders.eu.north", b"y")
        assert [(await messages.next(5)).topic for messages in (some, one)] == ["orders.eu", "orders.eu"]
        assert {(await all_of_them.next(5)).topic for _ in range(2)} == {"orders.eu", "orders.eu.north"}
        with pytest.raises(AlreadySubscribed):
            mq.sub("orders.*", "c")


async def test_a_wait_without_a_connection_says_why(tmp_path: Path) -> None:
    down = r"\((no connection to|the connection to) 127"
    async with serving(tmp_path / "d") as served:
        mq = await toymq.connect(f"toymq://127.0.0.1:{served.port}", timeout_s=0.2)
        messages = await mq.sub("t", "c")
    with pytest.raises(toymq.RequestTimeout, match=f"waited for one of t for c {down}"):
        await messages.next(0.2)
    with pytest.raises(toymq.RequestTimeout, match=f"waited for the OK of SUB other c {down}"):
        await mq.sub("other", "c")
    await mq.close()


async def test_an_ack_holds(mq: Client) -> None:
    """After an ack a second ack, a nack and a dead letter change nothing, and are no error. An ack after a nack counts."""
    await mq.pub_many("t", [b"acked", b"nacked"])
    async with mq.sub("t", "c") as messages:
        acked, nacked = await messages.next(5), await messages.next(5)
        await acked.ack()
        await acked.ack()
        await acked.nack(0)
        assert await acked.dead_letter("late") is False
        await nacked.nack(60)
        await nacked.ack(sync=True)
        (consumer,) = (await mq.describe("t"))["consumers"]
        assert (consumer["backlog"], consumer["scheduled"], consumer["inflight"]) == (0, 0, 0)
        assert await mq.topics("t.dlq") == []
