"""Both clients in a cluster with groups, against servers that follow a script: storms of MOVED, and nodes that are down."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

import toymq
from tests.support.fake_broker import Peer, Script, following
from toymq import Receipt, sync
from toymq.errors import Moved
from toymq.homes import MOVES_MAX
from toymq.sockets import reserved_port

QUICK: dict[str, Any] = {"backoff_min_s": 0.001, "backoff_max_s": 0.01}
TIMEOUT_S = 20
GREETING = b"HELLO 1 server=fake/1 max_payload=2097152 workers=1\n"

Publish = Callable[..., Awaitable[list[Receipt]]]


async def _publish_async(url: str, *payloads: bytes) -> list[Receipt]:
    async with asyncio.timeout(TIMEOUT_S), toymq.connect(url, random=Random(1), **QUICK) as mq:
        return list(await asyncio.gather(*(mq.pub("t", payload) for payload in payloads)))


async def _publish_sync(url: str, *payloads: bytes) -> list[Receipt]:
    def publish() -> list[Receipt]:
        with sync.connect(url, random=Random(1), **QUICK) as mq:
            return list(mq.pub_many("t", payloads))

    async with asyncio.timeout(TIMEOUT_S):
        return await asyncio.to_thread(publish)


both = pytest.mark.parametrize("publish", [_publish_async, _publish_sync], ids=["asyncio", "sync"])


class Storm:
    """Two nodes that redirect each publish to each other ``times`` times; then one accepts all. A client has two connections to
    the first node: its initial one and one by redirection. ``ends``: the connection ends with each MOVED, too."""

    def __init__(self, moves: int, *, ends: bool = False) -> None:
        self.left = moves
        self.ends = ends
        self.ended = 0
        self.addresses = ["", ""]
        self.taken: list[tuple[int, str]] = []

    def node(self, number: int) -> Script:
        async def script(peer: Peer) -> None:
            if not (first := await peer.line()):
                return  # the client gave this connection up while another one was made
            assert first.startswith("HELLO 1")
            peer.say(GREETING)
            moved: list[int] = []
            while line := await peer.line():
                if line == "CLUSTER moved=1":
                    peer.say(b"JSON 2\n{}\n")
                elif line.startswith("PUB t "):
                    self._answer(peer, number, int(line.rpartition("=")[2]), await peer.line(), moved)
                    if self.ends and moved:
                        self.ended += 1
                        return
                elif line == "QUIT":
                    peer.say(b"OK 0\n")
                    return

        return script

    def _answer(self, peer: Peer, number: int, sequence: int, body: str, moved: list[int]) -> None:
        if self.left:
            self.left -= body == "0"  # with the first of each run
            moved.append(sequence)
            peer.say(f"ERR MOVED {self.addresses[1 - number]} (group b) has the topic t\n".encode())
        elif moved and sequence > moved[0]:  # as a broker: behind one that was sent elsewhere
            peer.say(f"ERR MOVED {self.addresses[number]} (group b) has the topic t\n".encode())
        else:
            moved.clear()
            self.taken.append((sequence, body))
            peer.say(f"OK {len(self.taken) - 1}\n".encode())


@both
async def test_publishes_survive_a_storm_each_once_and_in_order(publish: Publish) -> None:
    storm = Storm(MOVES_MAX - 2)
    async with following(storm.node(0), storm.node(0)) as a, following(storm.node(1)) as b:
        storm.addresses = [a, b]
        receipts = await publish(f"toymq://{a}", *(b"%d" % number for number in range(20)))
    assert receipts == [Receipt(number, duplicate=False) for number in range(20)]
    assert storm.taken == [(number, f"{number}") for number in range(20)]


@both
async def test_publishes_survive_a_storm_in_which_every_connection_ends(publish: Publish) -> None:
    """The connection ends after each MOVED, so publishes that were sent behind it get no answer."""
    storm = Storm(MOVES_MAX - 2, ends=True)
    async with following(beyond=storm.node(0)) as a, following(beyond=storm.node(1)) as b:
        storm.addresses = [a, b]
        receipts = await publish(f"toymq://{a}", *(b"%d" % number for number in range(20)))
    assert receipts == [Receipt(number, duplicate=False) for number in range(20)]
    assert storm.taken == [(number, f"{number}") for number in range(20)]
    assert storm.ended >= MOVES_MAX - 2


@both
async def test_a_storm_without_end_is_told_to_the_caller(publish: Publish) -> None:
    storm = Storm(1_000_000)
    async with following(storm.node(0), storm.node(0)) as a, following(storm.node(1)) as b:
        storm.addresses = [a, b]
        with pytest.raises(Moved):
            await publish(f"toymq://{a}", b"0")
    assert MOVES_MAX <= 1_000_000 - storm.left <= MOVES_MAX + 1


def says_moved(*addresses: str) -> Script:
    """Return the script of a node of another group."""

    async def script(peer: Peer) -> None:
        await peer.greet(GREETING)
        await peer.expect("CLUSTER moved=1")
        peer.say(b"JSON 2\n{}\n")
        assert (await peer.line()).startswith("PUB t ")
        await peer.line()
        peer.say(f"ERR MOVED {' '.join(addresses)} (group b) has the topic t\n".encode())
        await peer.gone()

    return script


async def takes(peer: Peer) -> None:
    await peer.greet(GREETING)
    await peer.expect("CLUSTER moved=1")
    peer.say(b"JSON 2\n{}\n")
    assert (await peer.line()).startswith("PUB t ")
    await peer.line()
    peer.say(b"OK 7\n")
    await peer.gone()


@both
async def test_the_leader_that_is_named_is_down_and_another_node_of_its_group_leads(publish: Publish) -> None:
    down = f"127.0.0.1:{reserved_port(test_the_leader_that_is_named_is_down_and_another_node_of_its_group_leads)}"
    async with following(takes) as b, following(says_moved(down, b)) as a:
        assert await publish(f"toymq://{a}", b"0") == [Receipt(7, duplicate=False)]


@both
async def test_a_node_that_is_named_and_follows_names_its_leader(publish: Publish) -> None:
    async def follows(peer: Peer) -> None:
        assert (await peer.line()).startswith("HELLO 1")
        peer.say(f"ERR NOT_LEADER {leader}\n".encode())

    async with following(takes) as leader, following(follows) as b, following(says_moved(b)) as a:
        assert await publish(f"toymq://{a}", b"0") == [Receipt(7, duplicate=False)]
