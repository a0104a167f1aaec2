"""Where topics are, learned from MOVED: bounded, never in circles, and over TLS at the address of TLS."""

import pytest

from toymq.conversation import Conversation
from toymq.delivery_window import Feed
from toymq.errors import ClientClosed
from toymq.homes import GONE, MOVES_MAX, MOVES_S, Following, Homes
from toymq.url import Address
from toymq_py.errors import Moved
from toymq_py.protocol import Subscribe

HERE = Address("127.0.0.1", 1, "secret")
THERE = Address("127.0.0.1", 2, "secret")


class FakeLink:
    def __init__(self, address: Address) -> None:
        self.address: Address | None = address
        self.conversation = Conversation(None, lambda: None)
        self.at = 0.0

    def now(self) -> float:
        return self.at


def moved(port: int, more: str = "") -> Moved:
    return Moved(f"127.0.0.1:{port} {more}(worker 1) has the topic t")


def test_a_topic_and_its_dead_letters_are_where_moved_says() -> None:
    homes, link = Homes[FakeLink](), FakeLink(HERE)
    assert homes.find("t", FakeLink) is None
    assert homes.learn("t", moved(2), link)
    found = homes.find("t", FakeLink)
    assert found is not None
    assert found.address == THERE, "with the token"
    assert homes.find("t.dlq", FakeLink) is found
    assert homes.learn("u.dlq", moved(2), link)
    assert homes.find("u", FakeLink) is found, "one connection a worker"


def test_over_tls_the_address_with_tls_is_taken() -> None:
    tls = Address("127.0.0.1", 1, tls=True)
    homes, link = Homes[FakeLink](), FakeLink(tls)
    assert not homes.learn("t", moved(2), link), "nothing goes in the clear"
    assert homes.learn("t", moved(2, "toymqs://127.0.0.1:3 http://127.0.0.1:4/ "), link)
    assert homes.address("t") == Address("127.0.0.1", 3, tls=True)


@pytest.mark.parametrize("text", ["", "nowhere", "host:0", "host:99999", "http://127.0.0.1:80/ x"])
def test_what_is_no_address_is_not_followed(text: str) -> None:
    assert not Homes[FakeLink]().learn("t", Moved(text), FakeLink(HERE))


def test_one_that_cannot_be_reached_is_asked_for_anew() -> None:
    homes, link = Homes[FakeLink](), FakeLink(HERE)
    homes.learn("t", moved(2), link)
    assert homes.learn("t", Moved(GONE), link)
    assert homes.find("t", FakeLink) is None


def test_in_circles_ends() -> None:
    homes, link = Homes[FakeLink](), FakeLink(HERE)
    followed = [homes.learn("t", moved(2 + turn % 2), link) for turn in range(MOVES_MAX + 1)]
    assert followed == [True] * MOVES_MAX + [False]
    assert homes.learn("u", moved(2), link), "another topic"
    link.at = MOVES_S + 0.1
    assert homes.learn("t", moved(2), link), "later it may move again"


def test_workers_and_topics_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toymq.homes.LINKS_MAX", 2)
    monkeypatch.setattr("toymq.homes.TOPICS_MAX", 2)
    homes, link = Homes[FakeLink](), FakeLink(HERE)
    for port, topic in ((2, "a"), (3, "b")):
        assert homes.learn(topic, moved(port), link)
        homes.find(topic, FakeLink)
    assert not homes.learn("c", moved(4), link), "a third worker"
    assert homes.learn("c", moved(3), link)
    assert homes.find("a", FakeLink) is None, "the oldest is asked for again"
    assert homes.find("c", FakeLink) is not None
    assert [homes.place(topic) for topic in "abc"] == ["", "worker 1 has the topic t", "worker 1 has the topic t"]


def test_a_group_has_several_nodes() -> None:
    homes, link = Homes[FakeLink](), FakeLink(HERE)
    words = "127.0.0.1:2 127.0.0.1:3 toymqs://127.0.0.1:2 toymqs://127.0.0.1:3 http://127.0.0.1:4/ (group b) has the topic t"
    assert homes.learn("t", Moved(words), link)
    assert homes.address("t") == THERE
    assert homes.nodes(THERE) == (THERE, Address("127.0.0.1", 3, "secret"))
    assert homes.nodes(HERE) == (HERE,)
    over_tls = Homes[FakeLink]()
    assert over_tls.learn("t", Moved(words), FakeLink(Address("127.0.0.1", 1, tls=True)))
    first = over_tls.address("t")
    assert first == Address("127.0.0.1", 2, tls=True)
    assert over_tls.nodes(first) == (first, Address("127.0.0.1", 3, tls=True))


def test_one_that_is_away_and_named_again_is_no_circle() -> None:
    """A worker that is down may be named again and again, since its link waits each time. A worker that names itself is a
    circle."""
    homes, link = Homes[FakeLink](), FakeLink(HERE)
    for _ in range(3 * MOVES_MAX):
        assert homes.learn("t", moved(2), link)
        assert homes.learn("t", Moved(GONE), link)
    other = Homes[FakeLink]()
    followed = [other.learn("t", moved(2), link) for _ in range(MOVES_MAX + 1)]
    assert followed == [True] * MOVES_MAX + [False]


def test_a_subscription_that_is_waited_for_says_what_has_its_topic() -> None:
    class Open:
        def __init__(self) -> None:
            self._homes: Homes[FakeLink] = Homes()

        def _free_link(self, topic: str) -> FakeLink:
            return link

        _home = _free_link

    client, link = Open(), FakeLink(HERE)
    feed = Feed(Subscribe("t", "c"), lambda: None)
    assert feed.awaited == "the OK of SUB t c"
    following = Following(client, link)
    following.subscribes(feed, Moved("127.0.0.1:2 (group b) has the topic t, and has had no leader for 9 s"))
    following.subscribes(feed, Moved(GONE))
    assert client._homes.place("t") == client._homes.place("t.dlq") == "group b has the topic t, and has had no leader for 9 s"
    assert feed.awaited == "the OK of SUB t c; group b has the topic t, and has had no leader for 9 s"


def test_a_client_that_is_being_closed_goes_nowhere() -> None:
    """Found: a MOVED that arrived while the client closed was a traceback of asyncio's."""

    class Closing:
        def __init__(self) -> None:
            self._homes: Homes[FakeLink] = Homes()

        def _home(self, topic: str) -> FakeLink:
            raise ClientClosed("this client is closed")

        _free_link = _home

    client, link = Closing(), FakeLink(HERE)
    assert Following(client, link).publishes("t", moved(2)) is None
