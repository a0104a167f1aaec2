"""Lost connections, several hosts, time-outs, back-pressure: mostly against a server that follows a script."""

import asyncio
import logging
import re
from random import Random
from typing import Any, cast

import pytest

import toymq
from tests.support import moving
from tests.support.conversing import GREETING_LEASE, message
from tests.support.fake_broker import Peer, following
from tests.support.in_process import InProcess
from tests.support.quick_client import code_of, connect
from toymq import Client, Receipt, client
from toymq.link import FULL_READ_BYTES
from toymq.pending_publishes import Batch
from toymq_py.errors import (
    AuthFailed,
    QueueFull,
)


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
    caplog.set_level(logging.DEBUG, "toymq")

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
    assert "reconnecting" in warned[0]
    assert "s3cret" not in caplog.text
    assert [type(event) for event in events] == [toymq.Connected, toymq.Disconnected, toymq.Connected]
    assert not logging.getLogger("toymq").handlers


async def test_a_connection_that_has_failed_gets_no_more_writes(caplog: pytest.LogCaptureFixture) -> None:
    """Each ack after a redelivery is a write of its own, and asyncio logs a warning for each write to a socket that has
    failed."""
    count = 50

    async def dies(peer: Peer) -> None:
        await peer.greet()
        await peer.expect("SUB t c window=1024")
        peer.say(b"OK 0\n" + b"".join(b"MSG t %d 2 1 - 1\nx\n" % number for number in range(count)))
        await peer.gone()

    async def lives(peer: Peer) -> None:
        await peer.greet()
        assert (await peer.line()).startswith("ACK t c ")
        peer.say(b"OK %d\n" % count)
        await peer.gone()

    async with following(dies, lives) as url, connect(url) as mq, mq.sub("t", "c") as deliveries:
        held = [await anext(deliveries) for _ in range(count)]
        wire = mq._link._wire
        assert wire is not None
        assert wire.transport is not None
        wire.transport.abort()
        for message in held:
            await message.ack()
            mq._link.flush()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


async def test_what_was_pulled_is_given_back_on_the_next_connection() -> None:
    """The lease of a pulled message does not end with its connection: unless the client gives the message back on the next one,
    it is redelivered only when its lease of an hour is over."""
    pulls: list[str] = []
    lost = asyncio.Event()

    async def dies(peer: Peer) -> None:
        await peer.greet(GREETING_LEASE)
        await lost.wait()
        peer.reset()

    async def pulls_from(peer: Peer) -> None:
        await peer.greet(GREETING_LEASE)
        pulls.append(await peer.line())
        peer.say(b"MSG t 0 1 1 - 1\nx\nOK 1\n")
        await peer.gone()

    async def lives(peer: Peer) -> None:
        await peer.greet(GREETING_LEASE)
        assert await peer.line() == f"NACK t c 0 delay=5000 {pulls[0].split()[-1]}"
        peer.say(b"OK 1\n")
        await peer.gone()

    gone = asyncio.Event()
    async with following(dies, pulls_from, lives) as url, connect(
        url, on_event=lambda event: gone.set() if isinstance(event, toymq.Disconnected) else None
    ) as mq:
        (message,) = await mq.pull("t", "c", visibility=3600)
        lost.set()
        await gone.wait()
        await message.nack(5)


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
    again = asyncio.Event()

    async def silent(peer: Peer) -> None:
        await peer.greet()
        await peer.gone()

    async def back(peer: Peer) -> None:
        await peer.greet()
        again.set()
        await peer.gone()

    async with following(silent, back) as url, connect(url, timeout_s=0.05) as mq:
        calls = mq.ping(), mq.pub("t", b"x"), mq.sub("t", "c")
        ping, pub, sub = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(ping, TimeoutError)
        assert re.search(r"no answer within 0.05 s: waited for the reply to PING$", str(ping))
        assert isinstance(pub, toymq.RequestTimeout)
        assert "waited for the OK of a publish to t" in str(pub)
        assert isinstance(sub, toymq.RequestTimeout)
        assert "waited for the OK of SUB t c" in str(sub)
        await again.wait()


async def test_several_hosts_are_tried_in_turn() -> None:
    async def lives(peer: Peer) -> None:
        await peer.greet()
        await peer.gone()

    async with following(lives) as url, connect(["127.0.0.1:1", url]) as mq:
        assert mq.connected


async def test_nobody_there_is_said_at_once_or_waited_for() -> None:
    with pytest.raises(toymq.ConnectFailed, match=r"no broker at 127\.0\.0\.1:1: Connection refused") as caught:
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


@pytest.mark.parametrize(
    ("greeting", "said"), [(b"HTTP/1.1 400 Bad Request\r\n", "this port speaks HTTP"), (b"220 mail\r\n", "not a toymq broker")]
)
async def test_something_else_listens_there(greeting: bytes, said: str) -> None:
    async def other(peer: Peer) -> None:
        await peer.greet(greeting)

    async with following(other) as url:
        with pytest.raises(toymq.ProtocolViolation, match=said):
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
    monkeypatch.setattr("toymq.link.OUTSTANDING_BYTES_MAX", 10)
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
            long = tasks.create_task(code_of(mq.pull("t", "c", wait=1000)))
            await asyncio.sleep(0)
            with pytest.raises(toymq.RequestTimeout):
                await mq.pull("t", "c")
            await mq.close()
        assert long.result() == "CLIENT_CLOSED"


async def test_who_waits_for_room_goes_on_when_the_connection_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toymq.link.UNANSWERED_MAX", 1)

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


@pytest.mark.parametrize("what", moving.OUTPUTS)
async def test_a_client_that_speaks_as_its_connection_ends_comes_back(broker: InProcess, what: str) -> None:
    """A flush was scheduled when the connection was lost, and finds none; the next connection still sends what is pending."""
    async with connect(f"127.0.0.1:{broker.port}", timeout_s=moving.MOVE_S) as mq:
        await moving.speaks_as_its_connection_ends(mq, moving.OUTPUTS[what])


async def test_a_time_out_that_goes_wrong_costs_no_later_request_its_own() -> None:
    async def silent(peer: Peer) -> None:
        await peer.greet()
        await peer.gone()

    def goes_wrong() -> None:
        raise ZeroDivisionError

    heard: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.set_result(context["exception"]))
    async with following(silent) as url:
        mq = await connect(url, timeout_s=0.05)
        link = mq._link
        link.conversation.publish("t", ((b"", b"x", b""),), Batch(1, link.deadline(), goes_wrong))
        async with asyncio.timeout(moving.MOVE_S):
            assert isinstance(await heard, ZeroDivisionError)
            assert await code_of(mq.ping()) == "TIMEOUT"
        await mq.close()


async def test_a_connection_on_which_nothing_is_answered_is_left() -> None:
    """Found: after one answer was lost in the broker every later call waited behind it, and the client never reconnected."""

    async def silent(peer: Peer) -> None:
        await peer.greet()
        await peer.gone()

    async def lives(peer: Peer) -> None:
        await peer.greet()
        await peer.expect("PING")
        peer.say(b"PONG\n")
        await peer.gone()

    async with following(silent, lives) as url, connect(url, timeout_s=0.05) as mq:
        with pytest.raises(toymq.RequestTimeout):
            await mq.ping()
        await mq.ping()


async def test_a_connection_that_answers_others_is_kept_although_a_call_is_overdue() -> None:
    """A pull may wait longer than a time-out, for example, and calls that a slow disk holds up are answered in their turn."""
    answered = asyncio.Event()

    async def slow(peer: Peer) -> None:
        await peer.greet()
        await peer.expect("PING", "PING")
        peer.say(b"PONG\n")  # the second one is late
        await answered.wait()
        peer.say(b"PONG\n")
        await peer.expect("PING")
        peer.say(b"PONG\n")
        await peer.gone()

    async with following(slow) as url, connect(url, timeout_s=0.2) as mq:
        first, late = asyncio.ensure_future(mq.ping()), asyncio.ensure_future(mq.ping())
        await first
        answered.set()
        await late
        await mq.ping()


async def test_connections_that_break_at_once_are_made_ever_more_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: a client connected a hundred times in three seconds, because each greeting reset the back-off although the
    connection broke right after it."""
    monkeypatch.setattr(client, "DRAIN_S", 0.1)  # the last ack has no answer
    waits: list[float] = []

    class Highest(Random):
        def uniform(self, a: float, b: float) -> float:
            waits.append(b)
            return 0.0

    async def breaks(peer: Peer) -> None:
        await peer.greet()
        await peer.line()  # SUB
        peer.say(b"OK 1\nMSG t 0 1 0 - 10\nhalf")
        peer.reset()

    async def lives(peer: Peer) -> None:
        await peer.greet()
        await peer.line()
        peer.say(b"OK 1\nMSG t 0 1 0 - 1\nx\n")
        await peer.expect("ACK t c 0")
        peer.reset()

    async def again(peer: Peer) -> None:
        await peer.greet()
        await peer.line()
        peer.say(b"OK 0\nOK 1\nMSG t 1 1 0 - 1\nx\n")
        await peer.gone()

    async with following(*[breaks] * 5, lives, again) as url, toymq.connect(url, random=Highest()) as mq:
        messages = await mq.sub("t", "c")
        for n in range(2):
            message = await messages.next(10)
            assert message.id == n
            await message.ack()
        assert waits == [0.05, 0.1, 0.2, 0.4, 0.8, 0.05]


class CountedWrites:
    """A transport that records each write."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.writes: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        self.writes.append(data)
        self._transport.write(data)


async def test_what_many_handlers_say_in_one_pass_of_the_loop_leaves_in_one_write(mq: Client) -> None:
    """The broker then receives the acks together, and applies them as runs."""
    await mq.pub_many("t", [b"x"] * 60)
    async with mq.sub("t", "c", window=60) as subscription:
        messages = [await subscription.next(10) for _ in range(60)]
        wire = messages[0]._link._wire
        assert wire is not None
        counted = CountedWrites(cast("asyncio.Transport", wire.transport))
        wire.transport = cast("asyncio.Transport", counted)
        extended = asyncio.gather(*(message.extend(60) for message in messages))
        assert await asyncio.wait_for(extended, 10) == [True] * 60
        assert [data.count(b"TOUCH t c ") for data in counted.writes] == [60]
        counted.writes.clear()
        await asyncio.gather(*(message.nack(60) if message.id % 2 else message.ack() for message in messages))
        assert [(data.count(b"NACK t c "), data.count(b"\nACK t c ")) for data in counted.writes] == [(30, 1)]


async def test_behind_a_full_read_there_may_be_more_that_is_as_old() -> None:
    """Found: while a handler held the loop, deliveries piled up in the socket. They take several reads, and only those of the
    first counted as old, so the others' leases were not checked."""

    async def broker(peer: Peer) -> None:
        await peer.greet()
        await peer.gone()

    async with following(broker) as url, connect(url) as mq:
        link = mq._links[0]
        wire, conversation, now = link._wire, link.conversation, link.now()
        assert wire is not None
        before = conversation.looked_at
        link.now = lambda: now + 100.0  # type: ignore[method-assign]
        link.received(wire, message(1, body="x" * FULL_READ_BYTES))
        link._looked()
        assert conversation.looked_at == before
        link.received(wire, message(2))
        assert conversation.looked_at == now + 100.0
