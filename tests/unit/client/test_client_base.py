"""The part that both clients share: what they know of the broker, and methods made from requests."""

import inspect

import pytest

import toymq
from tests.support.conversing import Conversing
from toymq import Client
from toymq.client_base import ClientBase
from toymq.conversation import Conversation
from toymq.sync import Client as BlockingClient


class Bare(ClientBase):
    """A client with one connection, or with none yet."""

    def __init__(self, conversation: Conversation | None) -> None:
        self._options = toymq.connect("h")._options
        self._made = conversation

    @property
    def _main_conversation(self) -> Conversation | None:
        return self._made

    def _conversations(self) -> list[Conversation]:
        return [] if self._made is None else [self._made]


def test_facts_come_with_the_greeting_and_outlive_the_connection() -> None:
    closed = Bare(None)
    assert (closed.connected, closed.server, closed.max_payload) == (False, None, None)
    peer = Conversing()
    client = Bare(peer.conversation)
    assert (client.connected, client.server, client.max_payload) == (True, "fake/1", 2097152)
    peer.lose()
    assert (client.connected, client.server) == (False, "fake/1")


def test_what_is_settled_by_id_is_no_longer_open() -> None:
    peer = Conversing()
    feed = peer.subscribe()
    for msg_id in range(4):
        feed.open["t", msg_id] = None
    Bare(peer.conversation)._settle("t", "c", ((1, 2),))
    assert list(feed.open) == [("t", 0), ("t", 3)]
    Bare(peer.conversation)._settle("t", "another", ((0, 9),))
    assert list(feed.open) == [("t", 0), ("t", 3)]


@pytest.mark.parametrize("client", [Client, BlockingClient], ids=["asyncio", "blocking"])
def test_a_method_shows_the_arguments_of_its_request(client: type[ClientBase]) -> None:
    assert str(inspect.signature(client.delete)) == "(self, /, topic: str) -> int"  # type: ignore[attr-defined]
    assert str(inspect.signature(client.ack)).startswith("(self, /, topic: str, consumer: str, ids:")  # type: ignore[attr-defined]
