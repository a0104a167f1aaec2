"""The bytes of the less common requests, as protocol.md has them."""

import asyncio

import pytest

import toymq
from tests.support.conversing import message
from tests.support.fake_broker import Peer, following
from tests.support.quick_client import connect


async def test_pull_leases_and_acks_on_the_other_connection() -> None:
    """A PULL that waits delays all replies behind it, so it has a connection of its own."""

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
        """Read lines until the wanted one; renewals are sent by the clock, so an earlier one may be repeated."""
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


async def test_an_older_broker_gets_a_reason_of_one_word_and_a_newer_one_the_error() -> None:
    async def older(peer: Peer) -> None:
        await peer.greet()
        await peer.expect("SUB t c window=1024")
        peer.say(b"OK 1\n" + message(0) + message(1))
        await peer.expect("NACK t c 0 dead=1 reason=no%20such%20template:%20x.html")
        peer.say(b"OK 1\n")
        await peer.expect("NACK t c 1 reason=KeyError:%20'x'")
        peer.reset()

    async def newer(peer: Peer) -> None:
        assert await peer.line() == "HELLO 1"
        peer.say(b"HELLO 1 server=toymq/9 max_payload=5 nack_error=1 more=x\n")
        await peer.expect("SUB t c window=1024")
        peer.say(b"OK 1\n" + message(1))
        line = await peer.line()
        assert line.startswith("NACK t c 1 error_type=KeyError error='x' traceback=Traceback%20(most%20recent")
        assert "raise%20KeyError" in line
        peer.say(b"OK 1\n")
        await peer.expect("UNSUB t c")
        peer.say(b"OK 0\n")
        await peer.gone()

    async with following(older, newer) as url, connect(url) as mq, mq.sub("t", "c") as messages:
        assert await (await messages.next(5)).dead_letter("no such template: x.html")
        for _ in range(2):
            with pytest.raises(KeyError):
                async with (await messages.next(5)).process():
                    raise KeyError("x")


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
