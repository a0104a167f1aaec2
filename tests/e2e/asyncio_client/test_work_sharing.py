"""Pulling, and several workers."""

import asyncio

import pytest

from tests.support.conversing import GREETING_LEASE, message
from tests.support.fake_broker import Peer, following
from tests.support.in_process import InProcess
from tests.support.link_rig import until
from tests.support.quick_client import connect
from tests.support.steps import cancelled_at
from toymq import Client, Message, RequestTimeout, delivery_window, spare_links
from toymq_py.errors import (
    ModeConflict,
)


async def inflight(mq: Client, topic: str, consumer: str) -> int:
    (found,) = [one for one in (await mq.describe(topic))["consumers"] if one["consumer"] == consumer]
    count: int = found["inflight"]
    return count


async def polling(served: InProcess, count: int) -> None:
    """Wait until ``count`` PULLs wait in the broker."""
    async with asyncio.timeout(10):
        while sum(session._deliveries.pull is not None for session in served.server._sessions) < count:  # noqa: ASYNC110
            await asyncio.sleep(0)


async def connections(served: InProcess, count: int) -> None:
    """Wait until no more than ``count`` sessions are left."""
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


async def test_connections_of_pulls_that_waited_are_closed(
    broker: InProcess, mq: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found: three hundred simultaneous pulls kept three hundred connections open until the client was closed."""
    monkeypatch.setattr(spare_links, "SPARE_S", 0.0)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(300):
            tasks.create_task(mq.pull("a", "c", wait=60))
        await polling(broker, 300)
        assert len(broker.server._sessions) == 301
        await mq.pub_many("a", [b"x"] * 300)
    await connections(broker, 1 + spare_links.SPARE_KEPT)
    assert len(mq._links) == 1 + spare_links.SPARE_KEPT
    assert await mq.pull("b", "c", wait=0.001) == []
    assert len(broker.server._sessions) == 1 + spare_links.SPARE_KEPT, "one that was kept did it"


async def test_a_pull_that_is_cancelled_while_it_waits_takes_nothing(broker: InProcess, mq: Client) -> None:
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(mq.pull("jobs", "c", wait=3600))
        await polling(broker, 1)
        waiting.cancel()
    await connections(broker, 1)
    await mq.pub("jobs", b"x")
    (message,) = await mq.pull("jobs", "c")
    assert message.attempt == 1, "the one that left was given nothing"


async def test_a_worker_whose_lease_has_ended_does_not_act_on_the_lease_of_another(mq: Client) -> None:
    await mq.pub("jobs", b"x")
    (late,) = await mq.pull("jobs", "c", visibility=0.001)
    (holder,) = await mq.pull("jobs", "c", wait=10, visibility=3600)
    assert holder.attempt == 2
    assert not await late.extend(0.001)
    assert not await late.dead_letter("it is not mine any more")
    await late.nack(0)
    assert await mq.pull("jobs", "c") == [], "the other worker has it"
    assert await holder.extend(3600)
    await late.ack()
    await holder.nack(0)
    assert await mq.pull("jobs", "c") == [], "an ack is taken: the work was done"


async def test_a_late_ack_passes_the_key_on_while_another_worker_has_its_message(mq: Client) -> None:
    """As docs/order-per-key.md says: the worker that holds the message learns of the ack when it asks for more time."""
    for step in (b"one", b"two"):
        await mq.pub("jobs", step, headers={"toymq-group": "Ann"})
    (late,) = await mq.pull("jobs", "c", visibility=0.001, mode="keyed")
    (holder,) = await mq.pull("jobs", "c", wait=10, visibility=3600, mode="keyed")
    assert (late.id, holder.id) == (0, 0)
    assert not await late.extend(3600), "it can know that another one has it"
    assert await mq.pull("jobs", "c", mode="keyed") == [], "the key is with the other worker"
    await late.ack(sync=True)
    (following_one,) = await mq.pull("jobs", "c", wait=10, mode="keyed")
    assert following_one.id == 1
    assert not await holder.extend(3600)


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
        assert {each.attempt for each in found} <= {step + 1}, "a cancelled pull counts no attempt"
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


async def test_what_waits_in_the_window_while_another_worker_gets_it_is_not_handled_twice(
    broker: InProcess, mq: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_window, "CONFIRM_S", -1.0)  # everything has waited too long
    await mq.create("jobs", {"max_attempts": 0})  # leases of 1 ms end again and again, on a busy machine 20 times
    await mq.pub_many("jobs", [b"%d" % n for n in range(6)])
    here = mq.sub("jobs", "c", mode="shared", window=4, visibility=0.001)
    async with connect(f"127.0.0.1:{broker.port}") as other, here as mine:
        await mine.next(5)  # the other three wait
        done = set()
        while len(done) < 6:
            for message in await other.pull("jobs", "c", max=6, wait=10, visibility=3600):
                await message.ack(sync=True)
                done.add(message.id)
        with pytest.raises(RequestTimeout):
            await mine.next(0.05)


async def test_a_poll_without_a_wait_gets_what_waited(mq: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery_window, "CONFIRM_S", -1.0)
    async for _ in mq.pub_many("jobs", [b"%d" % n for n in range(3)]):
        pass
    async with mq.sub("jobs", "c") as messages:
        assert (await messages.next(5)).id == 0
        assert [(await messages.next(0)).id for _ in range(2)] == [1, 2]


async def leaves(peer: Peer) -> None:
    """Answer all that a client sends as it leaves."""
    while (await peer.line()) not in ("QUIT", ""):
        peer.say(b"OK 0\n")


@pytest.mark.parametrize("auto_extend", [False, True])
@pytest.mark.parametrize("in_turn", ["acked", "open"])
async def test_what_lay_in_the_socket_while_a_handler_held_the_loop_is_asked_for(auto_extend: bool, in_turn: str) -> None:
    """Found: while a handler held the loop, a delivery waited in the socket for longer than its lease. It counted as new when
    it was read, and was handled a second after another worker had acked it."""
    peers: list[Peer] = []

    async def broker(peer: Peer) -> None:
        await peer.greet(GREETING_LEASE)
        lease = (await peer.line()).rpartition("lease=")[2]
        peers.append(peer)
        peer.say(b"OK 0\n" + message(1))
        if in_turn == "acked":
            await peer.expect("ACK t c 1")
            peer.say(b"OK 1\n")
        await peer.expect(f"TOUCH t c 2 lease={lease}")
        peer.say(b"OK 0\n")
        if in_turn == "open":
            await peer.expect("ACK t c 1")
            peer.say(b"OK 1\n")
        await peer.expect("ACK t c 3")  # and nothing before
        peer.say(b"OK 1\n")
        await leaves(peer)

    async with following(broker) as url, connect(url) as mq, asyncio.TaskGroup() as tasks:
        messages = await mq.sub("t", "c", auto_extend=auto_extend, visibility=60)
        first = await messages.next(5)
        assert first.id == 1
        link, now = messages._link, messages._link.now()
        link.now = lambda: now + 100.0  # type: ignore[method-assign]
        peers[0].say(message(2))  # while the handler computes
        if in_turn == "acked":
            await first.ack()
        later = tasks.create_task(messages.next(5))
        await until(lambda: messages._feed._highest.get("t") == 2 and not messages._feed.arrived, "2 is dropped")
        if in_turn == "open":
            await first.ack()
        await until(lambda: link.conversation.looked_at == now + 100.0 and link.conversation.idle, "the loop is free")
        await until(lambda: any(not waiter.done() for waiter in messages._waiters), "the next message is waited for")
        link.now = lambda: now + 200.0  # type: ignore[method-assign]
        peers[0].say(message(3))  # after a quiet time
        third = await later
        assert third.id == 3
        await third.ack()
        await until(lambda: link.conversation.idle, "it is acked")


async def test_a_wait_that_ended_says_nothing_of_what_came_later() -> None:
    """A loop polls, and computes between two polls: a delivery that arrives meanwhile may be old, although the poll before it
    found nothing."""
    peers: list[Peer] = []

    async def broker(peer: Peer) -> None:
        await peer.greet(GREETING_LEASE)
        lease = (await peer.line()).rpartition("lease=")[2]
        peers.append(peer)
        peer.say(b"OK 0\n")
        await peer.expect(f"TOUCH t c 1 lease={lease}")
        peer.say(b"OK 1\n")
        await leaves(peer)

    async with following(broker) as url, connect(url) as mq:
        messages = await mq.sub("t", "c")
        with pytest.raises(RequestTimeout):
            await messages.next(0.001)
        link, now = messages._link, messages._link.now()
        link.now = lambda: now + 100.0  # type: ignore[method-assign]
        peers[0].say(message(1))
        await (await messages.next(5)).ack()
