"""Publishes and subscriptions whose topic another worker has go on over that worker's connection: in order, once, and with
their numbers."""

from tests.support.conversing import GREETING, Conversing, outcomes
from toymq.conversation import Conversation
from toymq.delivery_window import Feed, FeedState
from toymq_py.errors import Moved

WORKERS = GREETING[:-1] + b" workers=1\n"
MOVED = b"ERR MOVED 127.0.0.1:2 (worker 1) has the topic t\n"


class To:
    """Redirects every topic to one other conversation; ``asked`` counts."""

    def __init__(self, target: Conversation | None) -> None:
        self.target = target
        self.asked = 0

    def publishes(self, topic: str, moved: Moved) -> Conversation | None:
        self.asked += 1
        return self.target

    def subscribes(self, feed: Feed, moved: Moved) -> Conversation | None:
        self.asked += 1
        return self.target


def two() -> tuple[Conversing, Conversing]:
    """Return two conversations, of which the first follows MOVED to the second."""
    here, there = Conversing(WORKERS, online=False), Conversing(WORKERS, producer="q")
    here.conversation.elsewhere = To(there.conversation)
    assert here.connect() == ["CLUSTER moved=1"], "a broker of several workers is told"
    here.hear(b"JSON 2\n{}\n")
    return here, there


def test_a_broker_of_one_process_is_told_nothing() -> None:
    here = Conversing(online=False)
    here.conversation.elsewhere = To(None)
    assert here.connect() == []


def test_a_refused_publish_goes_on_under_its_producer_and_number() -> None:
    here, there = two()
    batch = here.publish("a", "b")
    here.said()
    here.hear(MOVED)
    assert there.said() == [], "one is unanswered here"
    assert here.conversation.is_leaving("t")
    here.hear(MOVED)
    assert there.said() == ["PUB t p-0 1 seq=0", "a", "PUB t p-0 1 seq=1", "b"]
    assert here.conversation.idle
    assert not here.conversation.is_leaving("t")
    there.hear(b"OK 4\nDUP 5\n")
    assert outcomes(batch) == [4, "DUP 5"]
    assert there.conversation.outstanding.bytes == here.conversation.outstanding.bytes == 0


def test_what_is_published_there_meanwhile_stays_behind() -> None:
    here, there = two()
    first = here.publish("a", "b", key="k")
    here.said()
    here.hear(MOVED)
    second = there.publish("c")
    assert there.said() == []
    here.hear(MOVED)
    assert there.said() == ["PUB t k 1", "a", "PUB t k 1", "b", "PUB t p-0 1 seq=0", "c"]
    there.hear(b"OK 0\nDUP 0\nOK 1\n")
    assert (outcomes(first), outcomes(second)) == ([0, "DUP 0"], [1])


def test_a_connection_that_is_lost_on_the_way_loses_nothing() -> None:
    here, there = two()
    batch = here.publish("a", "b", "c")
    here.said()
    here.hear(MOVED)
    here.lose()
    assert there.said()[::2] == ["PUB t p-0 1 seq=0", "PUB t p-0 1 seq=1", "PUB t p-0 1 seq=2"]
    there.lose()
    assert there.connect()[::2] == ["PUB t p-0 1 seq=0", "PUB t p-0 1 seq=1", "PUB t p-0 1 seq=2"]
    there.hear(b"DUP 0\nOK 1\nOK 2\n")
    assert outcomes(batch) == ["DUP 0", 1, 2]


def test_an_outcome_that_is_unknown_is_asked_for_there_under_the_same_number() -> None:
    """The worker stored the publish, but its topic moved to another worker before it answered."""
    here, there = two()
    batch = here.publish("a")
    here.said()
    here.lose()
    assert here.connect() == ["CLUSTER moved=1", "PUB t p-0 1 seq=0", "a"]
    here.hear(b"JSON 2\n{}\n" + MOVED)
    assert there.said() == ["PUB t p-0 1 seq=0", "a"]
    there.hear(b"DUP 7\n")
    assert outcomes(batch) == ["DUP 7"]


def test_one_that_its_caller_left_is_not_sent_on() -> None:
    here, there = two()
    batch = here.publish("a", "b")
    here.said()
    here.hear(MOVED)
    batch.abandoned = True
    here.hear(MOVED)
    assert there.said() == []
    assert there.conversation.idle
    assert there.conversation.outstanding.bytes == 0


def test_where_nothing_is_followed_the_caller_is_told() -> None:
    here = Conversing()
    batch = here.publish("a", "b")
    here.said()
    here.hear(MOVED * 2)
    assert outcomes(batch) == ["MOVED", "MOVED"]


def test_time_is_over_on_the_way() -> None:
    here, there = two()
    batch = here.publish("a", "b")
    batch.deadline = 5.0
    for slot in here.conversation._unanswered:
        slot.deadline = 5.0
    here.said()
    here.hear(MOVED)
    here.conversation.expire(5.0, 1.0, "")
    assert outcomes(batch) == ["TIMEOUT", "TIMEOUT"]
    here.hear(MOVED)
    assert there.said() == []


def test_when_time_is_over_the_text_names_what_has_the_topic() -> None:
    """Found: the time-out error named at most the address that refused the connection, and nothing where the publish was just
    being repeated."""
    here, there = two()
    there.conversation.elsewhere = To(here.conversation)
    there.lose()
    batch = here.publish("a")
    here.said()
    here.hear(b"ERR MOVED 127.0.0.1:2 127.0.0.1:3 (group b) has the topic t, and has had no leader for 9 s\n")
    there.conversation.hand_back()
    for slot in here.conversation._unanswered:
        slot.deadline = 5.0
    here.conversation.expire(5.0, 1.0, " (no connection)")
    waited = "the OK of a publish to t; group b has the topic t, and has had no leader for 9 s"
    assert str(batch.outcomes[0]) == f"no answer within 1 s: waited for {waited} (no connection)"


def test_a_subscription_goes_on_behind_the_acks_of_the_one_before() -> None:
    here, there = two()
    feed = here.subscribe()
    here.said()
    here.hear(b"OK 1\nMSG t 3 1 9 - 1\nx\n")
    push = feed.take()
    assert push is not None
    here.lose()
    here.conversation.ack(feed, "t", push.msg_id)
    assert here.connect() == ["ACK t c 3", "CLUSTER moved=1", "SUB t c"]
    here.hear(b"OK 0\nJSON 2\n{}\n" + MOVED)
    assert there.said() == ["SUB t c"]
    there.hear(b"OK 1\nMSG t 4 1 9 - 1\ny\n")
    push = feed.take()
    assert push is not None
    assert push.payload == b"y"
    assert feed.state is FeedState.LIVE
    assert here.conversation.feeds == []


def test_a_worker_that_cannot_be_reached_gives_back_what_waits_for_it() -> None:
    here, there = two()
    there.lose()
    feed = there.subscribe()
    batch = there.publish("a")
    there.conversation.elsewhere = To(here.conversation)
    there.conversation.hand_back()
    assert sorted(here.said()) == ["PUB t q-0 1 seq=0", "SUB t c", "a"]
    here.hear(b"OK 1\nOK 8\n")
    assert outcomes(batch) == [8]
    assert feed.state is FeedState.LIVE
    assert there.connect() == ["CLUSTER moved=1"]


def test_what_is_given_back_no_longer_counts_where_it_was() -> None:
    """Found: publishes that were moved to another connection, except the first, still counted on the old one, until it accepted
    no more."""
    here, there = two()
    there.conversation.elsewhere = To(here.conversation)
    there.lose()
    batch = there.publish("a", "bb", "ccc")
    assert there.conversation.outstanding.bytes == 6
    there.conversation.hand_back()
    assert (there.conversation.outstanding.bytes, here.conversation.outstanding.bytes) == (0, 6)
    here.said()
    here.hear(b"OK 0\nOK 1\nOK 2\n")
    assert (outcomes(batch), here.conversation.outstanding.bytes) == ([0, 1, 2], 0)


def test_closed_is_closed() -> None:
    here, there = two()
    batch = here.publish("a", "b")
    here.said()
    here.hear(MOVED)
    there.conversation.close(Moved("the end"))
    here.conversation.close(Moved("the end"))
    assert outcomes(batch) == ["MOVED", "MOVED"]
