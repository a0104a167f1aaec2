"""SUB and UNSUB of a conversation: their replies."""

from tests.support.conversing import GREETING_UNCOUNTED, Conversing
from toymq.delivery_window import FeedState
from toymq.subscribe_slots import SubscribeSlot


def test_a_refused_sub_ends_its_feed() -> None:
    peer = Conversing()
    feed = peer.subscribe()
    peer.said()
    peer.hear(b"ERR NO_SUCH_TOPIC there is no topic t\n")
    assert feed.state is FeedState.ENDED
    assert peer.conversation.feeds == []


def test_what_is_awaited_names_the_topic() -> None:
    peer = Conversing()
    assert SubscribeSlot(peer.conversation, peer.subscribe()).awaited == "the OK of SUB t c"


def test_an_unsub_without_open_deliveries_says_so() -> None:
    peer = Conversing(GREETING_UNCOUNTED)
    feed = peer.subscribe()
    peer.hear(b"OK 1\n")
    peer.said()
    done: list[None] = []
    peer.conversation.unsubscribe(feed, lambda: done.append(None))
    assert peer.said() == ["UNSUB t c uncounted=1"]
    peer.hear(b"OK 0\n")
    assert done == [None]
