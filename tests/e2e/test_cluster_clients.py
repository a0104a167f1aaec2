"""Both clients in a cluster, against servers that follow a script: they go to the node that another node names as leader."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner

import toymq
from tests.support.fake_broker import Peer, Script, following
from toymq import Receipt, client, link, options, sync
from toymq.errors import NotEnoughReplicas, NotLeader
from toymq.sync import client as sync_client
from toymq.sync import link as sync_link
from toymqctl.cli import main as toymqctl

QUICK: dict[str, Any] = {"backoff_min_s": 0.001, "backoff_max_s": 0.01}
TIMEOUT_S = 20

Publish = Callable[..., Awaitable[list[Receipt]]]
"""Connects to URLs and publishes payloads to ``t``, one after the other; all else are options."""


async def _publish_async(urls: list[str], *payloads: bytes, **options: Any) -> list[Receipt]:
    async with asyncio.timeout(TIMEOUT_S), toymq.connect(urls, random=Random(1), **(QUICK | options)) as mq:
        return [await mq.pub("t", payload) for payload in payloads]


async def _publish_sync(urls: list[str], *payloads: bytes, **options: Any) -> list[Receipt]:
    def publish() -> list[Receipt]:
        with sync.connect(urls, random=Random(1), **(QUICK | options)) as mq:
            return [mq.pub("t", payload) for payload in payloads]

    async with asyncio.timeout(TIMEOUT_S):
        return await asyncio.to_thread(publish)


both = pytest.mark.parametrize("publish", [_publish_async, _publish_sync], ids=["asyncio", "sync"])


def follows(leader: str) -> Script:
    """Return the script of a node that does not lead, and names ``leader``."""

    async def script(peer: Peer) -> None:
        assert (await peer.line()).startswith("HELLO 1")
        peer.say(f"ERR NOT_LEADER {leader}\n".encode())

    return script


def leads(*answers: bytes, hello: str = "HELLO 1") -> Script:
    """Return the script of a leader that gives publishes these answers."""

    async def script(peer: Peer) -> None:
        said = await peer.line()
        assert said.startswith(hello), said
        peer.say(b"HELLO 1 server=fake/1 max_payload=2097152\n")
        for answer in answers:
            await publish_of(peer)
            peer.say(answer)
        await peer.gone()

    return script


async def publish_of(peer: Peer) -> str:
    """Return the sequence number of the next publish."""
    line = await peer.line()
    assert line.startswith("PUB t "), line
    await peer.line()
    return line.rpartition(" ")[2]


@both
async def test_a_named_leader_is_next_with_the_token_of_the_address_that_named_it(publish: Publish) -> None:
    async with following(leads(b"OK 7\n", hello="HELLO 1 auth=s3cret")) as b, following(follows(b)) as a:
        assert await publish([f"toymq://s3cret@{a}"], b"x") == [Receipt(7, duplicate=False)]


@both
async def test_a_given_leader_keeps_its_own_token(publish: Publish) -> None:
    async with (
        following(leads(b"OK 7\n", hello="HELLO 1 auth=of-b")) as b,
        following(follows(b)) as a,
        following() as c,
    ):
        urls = [f"toymq://of-a@{a}", f"toymq://of-c@{c}", f"toymq://of-b@{b}"]
        assert await publish(urls, b"x") == [Receipt(7, duplicate=False)]


@both
async def test_a_publish_without_an_answer_goes_to_the_next_leader(publish: Publish) -> None:
    """The publish may be stored already: the client repeats it with the same number, and the next leader recognizes it."""
    numbers: list[str] = []

    async def steps_down(peer: Peer) -> None:
        await peer.greet()
        numbers.append(await publish_of(peer))
        peer.say(f"ERR NOT_LEADER {b}\n".encode())

    async def takes_over(peer: Peer) -> None:
        await peer.greet()
        numbers.append(await publish_of(peer))
        peer.say(b"DUP 3\n")
        await peer.gone()

    async with following(takes_over) as b, following(steps_down) as a:
        assert await publish([a], b"x") == [Receipt(3, duplicate=True)]
    assert numbers == ["seq=0", "seq=0"]


@both
async def test_an_election_is_waited_for(publish: Publish) -> None:
    """Both nodes answer that there is no leader; then one of them leads."""
    async with following(follows("-"), follows("-"), leads(b"OK 0\n")) as a, following(follows("-"), follows("-")) as b:
        assert await publish([a, b], b"x", wait_s=10) == [Receipt(0, duplicate=False)]


@both
async def test_a_client_that_begins_in_a_failover_waits_for_the_next_leader(publish: Publish) -> None:
    """Found: the client tried each address once, and failed within a second."""
    async with following(follows("127.0.0.1:1"), follows("-"), leads(b"OK 0\n")) as a:
        assert await publish(["127.0.0.1:1", a], b"x") == [Receipt(0, duplicate=False)]


async def test_toymqctl_says_that_it_waits_for_the_next_leader() -> None:
    async def leads_now(peer: Peer) -> None:
        await peer.greet()
        assert await peer.line() == "PING"
        peer.say(b"PONG\n")
        await peer.gone()

    async with following(follows("-"), leads_now) as a, asyncio.timeout(TIMEOUT_S):
        done = await asyncio.to_thread(CliRunner().invoke, toymqctl, ["--url", f"127.0.0.1:1,{a}", "ping"])
    assert done.exit_code == 0, done.output
    assert done.stderr == (
        "toymqctl: waiting up to 10 s for a node that leads: no broker at 127.0.0.1:1: Connection refused; "
        f"{a} does not lead its cluster, and knows no leader now\n"
    )


@both
async def test_without_a_leader_connecting_says_so(publish: Publish) -> None:
    async with following(follows("-")) as a, following(follows("10.0.0.1:0")) as b:
        with pytest.raises(toymq.ConnectFailed) as caught:
            await publish([a, b], b"x", wait_s=0)
    assert str(caught.value) == (
        f"{a} does not lead its cluster, and knows no leader now; {b} does not lead its cluster, and names 10.0.0.1:0"
    )
    assert isinstance(caught.value.__cause__, NotLeader)


@both
async def test_too_few_copies_refuse_a_publish_that_may_be_sent_again(publish: Publish) -> None:
    refusal = b"ERR NOT_ENOUGH_REPLICAS 1 of 2 in sync\n"
    async with following(leads(refusal)) as a:
        with pytest.raises(NotEnoughReplicas, match="1 of 2 in sync") as caught:
            await publish([a], b"x")
    assert caught.value.retryable


@both
@pytest.mark.parametrize("many", [False, True], ids=["one address", "two addresses"])
async def test_a_broker_that_is_paused_is_left_when_there_is_another(
    publish: Publish, many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connections of a paused broker stay open, and its kernel acknowledges what is sent."""
    monkeypatch.setattr(options, "SILENT_S", 0.2)
    for module in (link, sync_link):
        monkeypatch.setattr(module, "SILENCE_LOOK_S", 0.05)

    async def pauses(peer: Peer) -> None:
        await peer.greet()
        await publish_of(peer)
        await peer.gone()

    async with following(pauses) as a:
        if many:
            async with following(leads(b"OK 1\n")) as b:
                assert await publish([a, b], b"x", timeout_s=10) == [Receipt(1, duplicate=False)]
        else:
            with pytest.raises(toymq.RequestTimeout):
                await publish([a], b"x", timeout_s=0.6)


@pytest.mark.parametrize("blocking", [False, True], ids=["asyncio", "sync"])
async def test_a_quiet_subscription_asks_for_a_sign_of_life(blocking: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quiet subscription sends a PING: it stays with a broker that answers, and leaves one that does not."""
    monkeypatch.setattr(options, "SILENT_S", 0.2)
    for module in (link, sync_link):
        monkeypatch.setattr(module, "SILENCE_LOOK_S", 0.05)
    for module in (client, sync_client):
        monkeypatch.setattr(module, "DRAIN_S", 0.1)  # the script has no answer to the end
    pings = 0

    async def subscribed(peer: Peer) -> None:
        await peer.greet()
        assert (await peer.line()).startswith("SUB t c")
        peer.say(b"OK 0\n")

    async def quiet(peer: Peer) -> None:
        nonlocal pings
        await subscribed(peer)
        for _ in range(3):
            await peer.expect("PING")
            pings += 1
            peer.say(b"PONG\n")
        await peer.gone()

    async def delivers(peer: Peer) -> None:
        await subscribed(peer)
        peer.say(b"MSG t 4 1 1 - 1\nx\n")
        await peer.gone()

    def consume() -> int:
        with sync.connect([a, b], random=Random(1), **QUICK) as mq:
            message = mq.sub("t", "c").next(TIMEOUT_S)
            assert message is not None
            return message.id

    async def consume_async() -> int:
        async with toymq.connect([a, b], random=Random(1), **QUICK) as mq:
            return (await (await mq.sub("t", "c")).next(TIMEOUT_S)).id

    async with following(delivers) as b, following(quiet) as a:
        assert await (asyncio.to_thread(consume) if blocking else consume_async()) == 4
    assert pings == 3


@both
async def test_after_a_lost_connection_the_other_address_is_first(publish: Publish) -> None:
    """A machine that is gone may not even refuse a connection, so its address is not tried first."""

    async def dies(peer: Peer) -> None:
        await peer.greet()
        await publish_of(peer)
        peer.reset()

    async with following(leads(b"OK 1\n")) as b, following(dies) as a:
        assert await publish([a, b], b"x") == [Receipt(1, duplicate=False)]
